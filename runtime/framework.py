"""All that a controller is written with, under one name: ``from runtime import framework as fw``.

docs/framework.md is the guide. A module of its own, not ``runtime/__init__``: who needs one part does not load kr8s.
"""

from __future__ import annotations

from runtime.client import Client as Client
from runtime.clock import Clock as Clock
from runtime.clock import FakeClock as FakeClock
from runtime.clock import settle as settle
from runtime.controller import Controller as Controller
from runtime.controller import Result as Result
from runtime.errors import AlreadyExists as AlreadyExists
from runtime.errors import ApiError as ApiError
from runtime.errors import ConfigError as ConfigError
from runtime.errors import Conflict as Conflict
from runtime.errors import Forbidden as Forbidden
from runtime.errors import Gone as Gone
from runtime.errors import Invalid as Invalid
from runtime.errors import NotFound as NotFound
from runtime.errors import NotLeading as NotLeading
from runtime.errors import ServerError as ServerError
from runtime.errors import TerminalError as TerminalError
from runtime.errors import TooManyRequests as TooManyRequests
from runtime.errors import Unauthorized as Unauthorized
from runtime.errors import Unreachable as Unreachable
from runtime.errors import Unreadable as Unreadable
from runtime.events import EventRecorder as EventRecorder
from runtime.informer import Informer as Informer
from runtime.manager import Manager as Manager
from runtime.objects import Key as Key
from runtime.objects import controlled_by as controlled_by
from runtime.objects import reference as reference
from runtime.process import Program as Program
from runtime.process import Settings as Settings
from runtime.process import main as main
from runtime.reflector import Reflector as Reflector
from runtime.resources import Resource as Resource
from runtime.store import Store as Store
from runtime.workqueue import RateLimitingQueue as RateLimitingQueue
from runtime.writes import Created as Created
from runtime.writes import Exists as Exists
from runtime.writes import Foreign as Foreign
from runtime.writes import Terminating as Terminating
from runtime.writes import apply_condition as apply_condition
from runtime.writes import create_owned as create_owned
