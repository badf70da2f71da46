// etcd's own module has replace directives, so it cannot be installed by name: a main package around its entry point.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
