//! The hosts of an experiment: how each is reached, made, and removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::agent::{Agent, MARK, Reach, Request, quoted, ssh};
use super::container::{self, Container};
use super::placement::{Instance, namespace_address};
use super::topology::{HostKind, Role, RoleSpec, Topology};

/// Time that an agent may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);
/// The name of the host where links are emulated: this machine, outside of all namespaces.
pub(super) const NETWORK: &str = "network";
/// The programs that every host needs.
pub(super) const PROGRAMS: [&str; 2] = ["batzen", "batzen-lab"];

/// A host as the controller uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostAccess {
    pub(super) name: String,
    pub(super) kind: HostKind,
    /// The directory for everything that runs there.
    pub(super) dir: PathBuf,
    /// The product's program there.
    pub(super) batzen: String,
    /// The laboratory's program there.
    pub(super) lab: String,
    /// The way to its agent.
    pub(super) reach: Reach,
    /// The agent's socket there.
    pub(super) socket: PathBuf,
    /// The container that it is.
    pub(super) container: Option<Container>,
}

impl HostAccess {
    /// The product's program of an instance there.
    pub(super) fn batzen_of(&self, instance: &Instance) -> String {
        let own = instance.bin_dir.as_ref().map(|dir| dir.join(PROGRAMS[0]).to_string_lossy().into_owned());
        own.unwrap_or_else(|| self.batzen.clone())
    }
}

/// The version that a program has said it is of: `batzen 0.2.0`.
pub(super) fn version_of(said: &str) -> String {
    said.trim().rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Notes the versions of the programs on this machine. Those of others are asked for once their agents run.
///
/// # Errors
/// When a role's own program is missing.
pub(super) fn note_versions(
    instances: &mut [Instance],
    hosts: &BTreeMap<String, HostAccess>,
) -> anyhow::Result<()> {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for instance in instances.iter_mut().filter(|instance| instance.role.is_of_batzen()) {
        let here = hosts.get(&instance.host).filter(|access| access.kind != HostKind::Ssh);
        let Some(program) = here.map(|access| access.batzen_of(instance)) else { continue };
        if !known.contains_key(&program) {
            let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
            match finish(&format!("role {}: bin_dir: {program}", instance.role), output) {
                Ok(said) => known.insert(program.clone(), version_of(&said)),
                Err(error) if instance.bin_dir.is_some() => return Err(error),
                // A plan can be made without the program.
                Err(_) => continue,
            };
        }
        instance.version = known.get(&program).cloned();
    }
    Ok(())
}

/// The ways to all hosts. Sockets on this machine are in `runtime_dir`, since their paths must be short. Other machines
/// have a directory of the experiment's own, by its `id`.
pub(super) fn accesses(
    topology: &Topology,
    dir: &Path,
    (id, runtime_dir): (&str, &Path),
    own_bin_dir: &Path,
) -> BTreeMap<String, HostAccess> {
    let access = |(name, host): (&String, &super::topology::Host)| {
        let bin_dir = match (&host.bin_dir, host.kind) {
            (Some(dir), _) => Some(dir.as_path()),
            (None, HostKind::Ssh) => None,
            (None, _) => Some(own_bin_dir),
        };
        let program = |name: &str| {
            bin_dir.map_or_else(|| name.to_owned(), |dir| dir.join(name).to_string_lossy().into_owned())
        };
        let (batzen, lab) = (program(PROGRAMS[0]), program(PROGRAMS[1]));
        let (dir, socket) = match &host.dir {
            Some(there) => (there.join(id), there.join(id).join("agent.sock")),
            None => (dir.join("hosts").join(name), runtime_dir.join(format!("{name}.sock"))),
        };
        let reach = match host.kind {
            HostKind::Ssh => Reach::Ssh {
                destination: host.ssh.clone().or_else(|| host.address.clone()).unwrap_or_default(),
                config: topology.ssh_config.clone(),
                lab: lab.clone(),
                socket: socket.clone(),
            },
            _ => Reach::Socket(socket.clone()),
        };
        // The directory above that of the sockets is for short paths of the roles.
        let written = [dir.as_path(), runtime_dir.parent().unwrap_or(runtime_dir)];
        let container = Container::of(host, written, &container::program_dirs(topology, name, own_bin_dir));
        (
            name.clone(),
            HostAccess { name: name.clone(), kind: host.kind, dir, batzen, lab, reach, socket, container },
        )
    };
    let network = (NETWORK.to_owned(), super::topology::Host::default());
    let network = (!topology.links.is_empty()).then_some((&network.0, &network.1));
    topology.hosts.iter().chain(network).map(access).collect()
}

pub(super) fn finish(what: &str, output: std::io::Result<Output>) -> anyhow::Result<String> {
    let output = output.with_context(|| what.to_owned())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim())
}

/// Runs `ip`, which must succeed.
pub(super) fn ip(words: &[&str]) -> anyhow::Result<String> {
    finish(&format!("ip {}", words.join(" ")), Command::new("ip").args(words).stdin(Stdio::null()).output())
}

/// The name of a namespace.
pub(super) fn namespace(network: u8, host: &str) -> String {
    format!("batzen{network}-{host}")
}

fn bridge(network: u8) -> String {
    format!("batzen{network}")
}

fn has_namespaces(topology: &Topology) -> bool {
    topology.hosts.values().any(|host| host.kind.has_namespace())
}

/// The shell's command that prints the directory of PostgreSQL's programs, of the newest version there is.
pub(super) const FIND_POSTGRES: &str =
    "{ ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1 | grep . || pg_config --bindir; }";
/// The advice where the extension is missing.
pub(super) const CITUS_MISSING: &str = "PostgreSQL has no Citus there: install the extension, as docs/postgresql.md#citus says \
                                        (a package of citusdata.com, or built from its source), or use the role postgres";

/// The shell's command that succeeds where this PostgreSQL has the extension Citus.
pub(super) fn find_citus() -> String {
    format!("bin=$({FIND_POSTGRES}) && test -f \"$(\"$bin/pg_config\" --sharedir)/extension/citus.control\"")
}

/// Checks that this user may make what the topology needs, and that this machine has it.
///
/// # Errors
/// When namespaces are needed, and this user is not root, or a Citus cluster is to be here without the extension.
pub(super) fn require_means(topology: &Topology) -> anyhow::Result<()> {
    let is_here = |host: &String| topology.hosts.get(host).is_some_and(|host| host.kind != HostKind::Ssh);
    let mut nodes = topology.roles.iter().filter(|spec| spec.role == Role::Citus).flat_map(RoleSpec::placed);
    if nodes.any(is_here) {
        let found = Command::new("sh").args(["-c", &find_citus()]).stdin(Stdio::null()).output();
        ensure!(found.is_ok_and(|output| output.status.success()), "role citus: {CITUS_MISSING}");
    }
    ensure!(
        !has_namespaces(topology) || rustix::process::geteuid().is_root(),
        "network namespaces need root: run this as root, or change the kind of the hosts to `local`"
    );
    container::require(topology)
}

/// A number that no experiment of this machine uses, if the topology needs one.
///
/// # Errors
/// When `ip` cannot be run, or too many experiments run.
pub(super) fn free_network(topology: &Topology) -> anyhow::Result<u8> {
    if !has_namespaces(topology) {
        return Ok(0);
    }
    for network in 64..=250 {
        // The bridge is the claim: of two experiments that begin at once, one fails to add it and goes on.
        let name = bridge(network);
        if ip(&["link", "add", &name, "type", "bridge"]).is_ok() {
            return Ok(network);
        }
        if ip(&["link", "show", &name]).is_err() {
            break;
        }
    }
    bail!(
        "no network bridge can be made: is `ip` installed (apt-get install iproute2), and has the kernel bridges?"
    )
}

/// Makes the namespaces, each with an interface on the bridge of the experiment.
///
/// # Errors
/// When `ip` refuses.
pub(super) fn make_namespaces(topology: &Topology, network: u8) -> anyhow::Result<()> {
    let hosts: Vec<_> =
        topology.hosts.iter().filter(|(_, host)| host.kind.has_namespace()).map(|(name, _)| name).collect();
    if hosts.is_empty() {
        return Ok(());
    }
    let bridge = bridge(network);
    ip(&["address", "add", &format!("10.{network}.0.1/16"), "dev", &bridge])?;
    ip(&["link", "set", &bridge, "up"])?;
    for (host, number) in hosts.into_iter().zip(1_u32..) {
        let (name, outside) = (namespace(network, host), format!("bz{network}h{number}"));
        let address = format!("{}/16", namespace_address(topology, network, host));
        ip(&["netns", "add", &name])?;
        ip(&["link", "add", &outside, "type", "veth", "peer", "name", "lan0", "netns", &name])?;
        ip(&["link", "set", &outside, "master", &bridge, "up"])?;
        ip(&["-n", &name, "address", "add", &address, "dev", "lan0"])?;
        ip(&["-n", &name, "link", "set", "lan0", "up"])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
    }
    Ok(())
}

/// Removes the namespaces, and kills what still runs in them.
///
/// # Errors
/// When one cannot be removed.
pub(super) fn remove_namespaces(network: u8) -> anyhow::Result<()> {
    if network == 0 {
        return Ok(());
    }
    let prefix = format!("batzen{network}-");
    let listed = ip(&["netns", "list"])?;
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    let mut failures = Vec::new();
    for name in names.filter(|name| name.starts_with(&prefix)) {
        let pids = ip(&["netns", "pids", name]).unwrap_or_default();
        pids.split_whitespace().for_each(kill);
        if let Err(error) = ip(&["netns", "delete", name]) {
            failures.push(format!("{error:#}"));
        }
    }
    // It is gone already if an earlier attempt got this far.
    let _ = ip(&["link", "delete", &bridge(network)]);
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

fn kill(pid: &str) {
    let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended meanwhile.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Starts the agent of a host, and connects.
///
/// # Errors
/// When a program is missing there, or the agent does not listen.
pub(super) fn launch(access: &HostAccess, network: u8) -> anyhow::Result<Agent> {
    let samples = access.dir.join("samples.jsonl");
    let words =
        ["agent", "serve", "--socket", &access.socket.to_string_lossy(), "--samples"].map(str::to_owned);
    if let Some(container) = &access.container {
        let samples = samples.to_string_lossy().into_owned();
        container.start(access, network, &[&words[..], &[samples]].concat())?;
    } else if access.kind == HostKind::Ssh {
        let Reach::Ssh { destination, config, .. } = &access.reach else {
            bail!("{}: not reached by ssh", access.name)
        };
        let arguments: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let dir = quoted(&access.dir.to_string_lossy());
        let script = format!(
            "command -v {batzen} >/dev/null || {{ echo '{batzen} is not installed: batzen-lab provision' >&2; exit 1; }}; \
             umask 077 && mkdir -p {dir} && [ -O {dir} ] && [ ! -L {dir} ] || {{ echo {dir}' belongs to another user' >&2; exit 1; }}; \
             exec setsid --fork env {MARK}={socket} {lab} {} {} </dev/null >>{dir}/agent.log 2>&1",
            arguments.join(" "),
            quoted(&samples.to_string_lossy()),
            socket = quoted(&access.socket.to_string_lossy()),
            batzen = access.batzen,
            lab = quoted(&access.lab),
        );
        finish(
            &format!("ssh {destination}"),
            ssh(destination, config.as_deref()).arg(script).stdin(Stdio::null()).output(),
        )?;
    } else {
        std::fs::create_dir_all(&access.dir).with_context(|| access.dir.display().to_string())?;
        let log = std::fs::File::options().create(true).append(true).open(access.dir.join("agent.log"))?;
        let mut command = Command::new("setsid");
        command.arg("--fork");
        if access.kind == HostKind::Namespace {
            command.args(["ip", "netns", "exec", &namespace(network, &access.name)]);
        }
        command.arg(&access.lab).args(&words).arg(&samples).env(MARK, &access.socket);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let status = command.status().context("cannot start setsid (apt-get install util-linux)")?;
        ensure!(status.success(), "{}: the agent cannot be started: {status}", access.name);
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Agent::connect(&access.name, &access.reach) {
            Ok(agent) => return Ok(agent),
            Err(error) if Instant::now() > deadline => {
                let said = std::fs::read_to_string(access.dir.join("agent.log")).unwrap_or_default();
                return Err(error.context(format!("the agent does not listen; {}", said.trim())));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Ends the agent of a host with everything that it runs, or what a killed agent has left behind.
///
/// # Errors
/// When an agent does not end what it runs, or the host cannot be reached.
pub(super) fn end(access: &HostAccess) -> anyhow::Result<()> {
    match Agent::connect(&access.name, &access.reach) {
        Ok(mut agent) => agent.ask(&Request::End).map(drop),
        Err(error) => {
            tracing::debug!(%error, host = access.name, "no agent");
            let socket = access.socket.to_string_lossy();
            let words = ["agent", "clean", "--socket", &socket];
            let output = match &access.reach {
                Reach::Ssh { destination, config, lab, .. } => {
                    let words: Vec<String> = std::iter::once(lab.as_str()).chain(words).map(quoted).collect();
                    ssh(destination, config.as_deref()).arg(words.join(" ")).stdin(Stdio::null()).output()
                }
                Reach::Socket(_) => Command::new(&access.lab).args(words).stdin(Stdio::null()).output(),
            };
            finish(&access.name, output).map(drop)
        }
    }
}

/// Whether another machine has a directory of the experiment, so that something was begun there.
///
/// # Errors
/// When the machine cannot be reached.
pub(super) fn has_dir(access: &HostAccess) -> anyhow::Result<bool> {
    let Reach::Ssh { destination, config, .. } = &access.reach else { return Ok(true) };
    let script = format!("if [ -d {} ]; then echo yes; fi", quoted(&access.dir.to_string_lossy()));
    let output = ssh(destination, config.as_deref()).arg(script).stdin(Stdio::null()).output();
    Ok(finish(&access.name, output)?.trim() == "yes")
}

/// Removes the directory of an experiment from another machine.
///
/// # Errors
/// When the machine cannot be reached, or refuses.
pub(super) fn remove_dir(access: &HostAccess) -> anyhow::Result<()> {
    let Reach::Ssh { destination, config, .. } = &access.reach else { return Ok(()) };
    let script = format!("rm -rf -- {}", quoted(&access.dir.to_string_lossy()));
    let output = ssh(destination, config.as_deref()).arg(script).stdin(Stdio::null()).output();
    finish(&access.name, output).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_reached_by_their_kind() {
        let text = "
            name = 'x'
            role = []
            [hosts.near]
            [hosts.far]
            kind = 'ssh'
            address = '10.0.0.7'
            ssh = 'root@far'
            dir = '/var/tmp/lab'
        ";
        let topology: Topology = toml::from_str(text).unwrap();
        let found = accesses(&topology, Path::new("/r"), ("id", Path::new("/t")), Path::new("/bin"));
        assert_eq!(found["near"].reach, Reach::Socket("/t/near.sock".into()));
        assert_eq!(
            (found["near"].batzen.as_str(), found["near"].dir.as_path()),
            ("/bin/batzen", Path::new("/r/hosts/near"))
        );
        let socket = PathBuf::from("/var/tmp/lab/id/agent.sock");
        let reach =
            Reach::Ssh { destination: "root@far".into(), config: None, lab: "batzen-lab".into(), socket };
        assert_eq!((&found["far"].reach, found["far"].batzen.as_str()), (&reach, "batzen"));
    }
}
