//! Hosts that are containers of Podman. The network of each is a namespace of the experiment; its directories are at the same
//! paths as outside, so that the controller reaches the agent's socket there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use rustix::process::{Resource, getrlimit};

use super::agent::MARK;
use super::hosts::{HostAccess, finish, namespace};
use super::topology::{Host, HostKind, Topology};

/// The memory for segments that PostgreSQL shares among its processes: Podman's default is too small for parallel queries.
const SHM_SIZE: &str = "1g";

/// A container that is a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Container {
    /// Its files: the name of an image, or `--rootfs` and a directory.
    root: Vec<String>,
    /// The directories that it shares with this machine, and whether it may write there.
    shared: Vec<(PathBuf, bool)>,
}

impl Container {
    /// The container that a topology describes. It writes to `written`, and reads the programs in `programs`.
    pub(super) fn of(host: &Host, written: [&Path; 2], programs: &[PathBuf]) -> Option<Self> {
        if host.kind != HostKind::Container {
            return None;
        }
        let root = match (&host.image, &host.rootfs) {
            // What it writes to its files is dropped with it.
            (_, Some(rootfs)) => vec!["--rootfs".to_owned(), format!("{}:O", rootfs.display())],
            (image, None) => image.iter().cloned().collect(),
        };
        let shared = written.map(|dir| (dir.to_owned(), true)).into_iter();
        let programs = programs.iter().map(|dir| (dir.clone(), false));
        Some(Self { root, shared: shared.chain(programs).collect() })
    }

    /// The arguments of `podman` that start the agent of a host in it.
    fn arguments(&self, access: &HostAccess, network: u8, limits: &[(&str, u64)]) -> Vec<String> {
        let name = namespace(network, &access.name);
        let mut arguments: Vec<String> =
            ["run", "--detach", "--rm", "--name", &name].map(str::to_owned).into();
        arguments.extend(["--hostname".to_owned(), access.name.clone()]);
        arguments.push(format!("--network=ns:/run/netns/{name}"));
        arguments.push(format!("--shm-size={SHM_SIZE}"));
        arguments.push(format!("--env={MARK}={}", access.socket.display()));
        arguments.push("--log-driver=k8s-file".to_owned());
        arguments.push(format!("--log-opt=path={}", access.dir.join("agent.log").display()));
        // Podman's own limits may be above those that this process may set.
        arguments.extend(limits.iter().map(|(resource, most)| format!("--ulimit={resource}={most}:{most}")));
        for (dir, may_write) in &self.shared {
            let mode = if *may_write { "" } else { ":ro" };
            arguments.push(format!("--volume={}:{0}{mode}", dir.display()));
        }
        // Images may name a program and a user of their own.
        arguments.push(format!("--entrypoint={}", access.lab));
        arguments.push("--user=0".to_owned());
        arguments.extend(self.root.iter().cloned());
        arguments
    }

    /// Starts the agent of a host in it, with these arguments.
    ///
    /// # Errors
    /// When Podman cannot start it.
    pub(super) fn start(&self, access: &HostAccess, network: u8, agent: &[String]) -> anyhow::Result<()> {
        let files = getrlimit(Resource::Nofile).maximum;
        // Podman itself has no more processes than the kernel has numbers for.
        let numbers = std::fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().parse()?;
        let processes = getrlimit(Resource::Nproc).maximum.map_or(numbers, |most: u64| most.min(numbers));
        let limits: Vec<_> =
            files.map(|most| ("nofile", most)).into_iter().chain([("nproc", processes)]).collect();
        for (dir, _) in self.shared.iter().filter(|(_, may_write)| *may_write) {
            std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        let output = Command::new("podman")
            .args(self.arguments(access, network, &limits))
            .args(agent)
            .stdin(Stdio::null())
            .output();
        finish("podman run", output).map(drop)
    }
}

/// The directories of all programs that a host runs, each once.
pub(super) fn program_dirs(topology: &Topology, name: &str, own: &Path) -> Vec<PathBuf> {
    let host = topology.hosts.get(name).and_then(|host| host.bin_dir.as_deref()).unwrap_or(own);
    let roles = topology.roles.iter().filter(|spec| spec.placed().any(|placed| placed == name));
    let mut dirs: Vec<PathBuf> = roles.filter_map(|spec| spec.bin_dir.clone()).collect();
    dirs.push(host.to_owned());
    dirs.sort();
    dirs.dedup();
    dirs
}

/// Checks that this machine has Podman, if a host needs it.
///
/// # Errors
/// When it has not.
pub(super) fn require(topology: &Topology) -> anyhow::Result<()> {
    if topology.hosts.values().all(|host| host.kind != HostKind::Container) {
        return Ok(());
    }
    let found = Command::new("podman").arg("--version").stdin(Stdio::null()).output();
    ensure!(
        found.is_ok_and(|output| output.status.success()),
        "hosts of kind container need Podman: apt-get install podman, or change their kind to `namespace`"
    );
    Ok(())
}

/// Removes the containers of an experiment, and kills what still runs in them.
///
/// # Errors
/// When one cannot be removed.
pub(super) fn remove_all(topology: &Topology, network: u8) -> anyhow::Result<()> {
    let containers = topology.hosts.iter().filter(|(_, host)| host.kind == HostKind::Container);
    let names: Vec<String> = containers.map(|(name, _)| namespace(network, name)).collect();
    if network == 0 || names.is_empty() {
        return Ok(());
    }
    let mut command = Command::new("podman");
    command.args(["rm", "--force", "--ignore", "--time", "0"]).args(&names).stdin(Stdio::null());
    finish("podman rm", command.output()).map(drop)
}

/// The command that runs another one in the container of a host.
pub(super) fn exec(access: &HostAccess, network: u8, has_terminal: bool) -> Command {
    let mut command = Command::new("podman");
    command.args(["exec", "--interactive"]);
    command.args(has_terminal.then_some("--tty"));
    command.arg("--workdir").arg(&access.dir).arg(namespace(network, &access.name));
    command
}

#[cfg(test)]
mod tests {
    use super::super::agent::Reach;
    use super::*;

    fn host(text: &str) -> Host {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_container_gets_its_network_its_directories_and_limits_that_may_be_set() {
        let dirs = [Path::new("/srv/experiment"), Path::new("/run/b")];
        let image = host("kind = 'container'\nimage = 'debian:12'");
        let container = Container::of(&image, dirs, &["/opt/bin".into()]).unwrap();
        let arguments = container_words(&access(container));
        for expected in [
            "--network=ns:/run/netns/batzen64-core",
            "--volume=/srv/experiment:/srv/experiment",
            "--volume=/opt/bin:/opt/bin:ro",
            "--ulimit=nofile=20000:20000",
        ] {
            assert!(arguments.iter().any(|word| word == expected), "{expected}: {arguments:?}");
        }
        assert_eq!(arguments.last().unwrap(), "debian:12");

        let rootfs = host("kind = 'container'\nrootfs = '/srv/debian'");
        let container = Container::of(&rootfs, dirs, &[]).unwrap();
        let words = container_words(&access(container));
        assert_eq!(words[words.len() - 2..], ["--rootfs", "/srv/debian:O"]);
        assert_eq!(Container::of(&host("kind = 'namespace'"), dirs, &[]), None);
    }

    fn access(container: Container) -> HostAccess {
        let socket = PathBuf::from("/run/b/agents/core.sock");
        HostAccess {
            name: "core".into(),
            kind: HostKind::Container,
            dir: "/srv/experiment".into(),
            batzen: "/opt/bin/batzen".into(),
            lab: "/opt/bin/batzen-lab".into(),
            reach: Reach::Socket(socket.clone()),
            socket,
            container: Some(container),
        }
    }

    fn container_words(access: &HostAccess) -> Vec<String> {
        access.container.as_ref().unwrap().arguments(access, 64, &[("nofile", 20_000)])
    }
}
