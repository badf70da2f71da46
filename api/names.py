"""Names under ``phalanx.dev/``, upstream's names we meet, and how a Job's group is called.

The admission policies in ``manifests/`` compute the same group name in CEL; an integration test compares both
on a live server.
"""

from __future__ import annotations

GROUP = "phalanx.dev"

#: Our scheduler's name in ``spec.schedulerName``.
SCHEDULER_NAME = "phalanx"
#: What the API server fills in where a pod says nothing: set and unset cannot be told apart after admission.
DEFAULT_SCHEDULER_NAME = "default-scheduler"
#: Where the suite is installed.
SYSTEM_NAMESPACE = "phalanx-system"

#: Label on the pod template of a Job (and so on its pods) that the suite takes on. Value: ``job``.
GANG_LABEL = f"{GROUP}/gang"
#: Label on a namespace whose Jobs the suite may take on. Value: ``enabled``.
JOBS_LABEL = f"{GROUP}/jobs"
#: Label that names a pod's group where the server has no field for it.
POD_GROUP_LABEL = f"{GROUP}/pod-group"

#: Annotations a user may put on a Job.
POLICY_ANNOTATION = f"{GROUP}/policy"
MIN_COUNT_ANNOTATION = f"{GROUP}/min-count"
DISRUPTION_MODE_ANNOTATION = f"{GROUP}/disruption-mode"
TOPOLOGY_ANNOTATION = f"{GROUP}/topology"
RESOURCE_CLAIMS_ANNOTATION = f"{GROUP}/resource-claims"

#: On a Workload or PodGroup of ours: what the API server did not keep of it, as JSON.
DROPPED_FIELDS_ANNOTATION = f"{GROUP}/dropped-fields"

#: Upstream's mark by which a parent delegates the group of a child Job.
GROUP_TEMPLATE_ANNOTATION = "scheduling.k8s.io/group-template-name"
#: Upstream's finalizer on PodGroups, set by admission, removed by kube-controller-manager.
PROTECTION_FINALIZER = "scheduling.k8s.io/podgroup-protection"
#: The controller that runs Jobs unless ``spec.managedBy`` says otherwise.
JOB_CONTROLLER = "kubernetes.io/job-controller"

#: The one template of a Job's Workload.
TEMPLATE_NAME = "pods"

_PREFIX_LENGTH = 50


def group_name(job_name: str, job_uid: str) -> str:
    """Name of the Workload and of the PodGroup of a Job: at most 63 characters, a DNS label.

    First 50 characters of the Job's name with dots as dashes, a dash, and 12 hex digits of its uid: a Job
    made again under the same name gets a new group.
    """
    return f"{job_name[:_PREFIX_LENGTH].replace('.', '-')}-{job_uid[0:8]}{job_uid[9:13]}"
