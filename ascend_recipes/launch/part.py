"""One launcher's part of a rendered deployment: its processes, group by group."""

import shlex
from collections.abc import Callable

from ascend_recipes.launch.deployment import LEAD, Deployment
from ascend_recipes.launch.environment import without_secrets
from ascend_recipes.launch.folder import RunFolder
from ascend_recipes.launch.http import ServerClient
from ascend_recipes.launch.listener import ServeListener
from ascend_recipes.launch.members import LOG_FOLDER, Member, find_executable, process_spec
from ascend_recipes.launch.readiness import VLLM
from ascend_recipes.launch.session import Session
from ascend_recipes.planning.ports import meeting_port

PEER_PATIENCE_SECONDS = 75.0
"""Time that another node may take to end its processes."""


class MemberListener:
    """Tells what one of several processes is doing, without beginning stages of the whole."""

    def __init__(self, name: str, listener: ServeListener) -> None:
        self._name, self._listener = name, listener

    def begin(self, stage: str) -> None:
        """A stage of one process is a detail of the deployment's."""
        self.detail(stage)

    def detail(self, text: str) -> None:
        """Say who did it."""
        self._listener.detail(f"{self._name}: {text}")

    def end(self) -> None:
        """The deployment goes on."""

    def abandon(self) -> None:
        """The deployment says so itself."""


class Part:
    """Starts groups of processes and knows which of them answer."""

    def __init__(self, deployment: Deployment, folder: RunFolder, listener: ServeListener) -> None:
        self.deployment = deployment
        self.folder = folder
        self.listener = listener
        self.ready_seconds = float(deployment.recipe.serving.ready_timeout_s)
        self._executable = find_executable(VLLM, deployment.outer) or VLLM
        self._healthy: set[str] = set()

    @property
    def place(self) -> tuple[str, int]:
        """Address and port at which the launchers meet."""
        site = self.deployment.recipe.site
        addresses = site.node_addresses or ("127.0.0.1",)
        return addresses[LEAD], meeting_port(site.port_base)

    @property
    def model_name(self) -> str:
        """Name under which clients address the model."""
        recipe = self.deployment.recipe
        return recipe.serving.served_model_name or recipe.model

    @property
    def clients(self) -> tuple[ServerClient, ...]:
        """Servers of this machine."""
        return tuple(item.client for item in self.deployment.local if item.client is not None)

    def write_down(self) -> str:
        """Leave commands and variables in the run folder, without secrets; one line to paste."""
        secrets, local = self.deployment.recipe.site.secrets, self.deployment.local
        (self.folder.path / LOG_FOLDER).mkdir(exist_ok=True)
        argv = {item.name: [self._executable, *item.command.argv[1:]] for item in local}
        variables = {item.name: without_secrets(item.command.env, secrets) for item in local}
        self.folder.write_json("argv.json", argv)
        self.folder.write_json("variables.json", variables)
        lines = [f"# {item.name}\n{_pasteable(item)}\n" for item in local]
        script = self.folder.path / "commands.sh"
        script.write_text("\n".join(lines), encoding="utf-8")
        return _pasteable(local[0]) if self.deployment.is_alone else str(script)

    def start(self, session: Session, group: str) -> None:
        """Start this machine's processes of a group."""
        alone = self.deployment.is_alone
        if not alone:
            self.listener.begin(group)
        for member in self._members(group):
            spec = process_spec(member, self.folder, self._executable, self.deployment.outer)
            quiet = MemberListener(member.name, self.listener)
            session.start(spec, self.listener if alone else quiet)

    def unhealthy(self, group: str) -> tuple[str, ...]:
        """Processes of this machine that do not answer yet; without an API, to live is enough."""
        return tuple(item.name for item in self._members(group) if not self._is_healthy(item))

    def wait(
        self,
        session: Session,
        group: str,
        others: Callable[[], tuple[int, ...]] = tuple,
    ) -> None:
        """Wait until a group answers, here and on other nodes.

        Raises:
            RecipeError: a process ended, or the time is up (exit code 5).
        """
        missing: list[str] = []

        def is_ready() -> bool:
            missing[:] = [*self.unhealthy(group), *(f"node {node}" for node in others())]
            return not missing

        session.wait_until(
            is_ready, timeout_s=self.ready_seconds, waiting_for=lambda: ", ".join(missing)
        )
        self.tell_ready(group)

    def tell_ready(self, group: str) -> None:
        """Say how many processes of a group answer; a single one shows its own stages."""
        if not self.deployment.is_alone:
            self.listener.detail(f"{len(self._members(group))} process(es) here answer")

    def _is_healthy(self, member: Member) -> bool:
        client = member.client
        if member.name in self._healthy or client is None:
            return True
        if client.is_healthy():
            self._healthy.add(member.name)
            return True
        return False

    def _members(self, group: str) -> tuple[Member, ...]:
        return tuple(item for item in self.deployment.local if item.group == group)


def _pasteable(member: Member) -> str:
    settings = [f"{name}={shlex.quote(text)}" for name, text in sorted(member.command.env.items())]
    return " ".join([*settings, shlex.join(member.command.argv)])
