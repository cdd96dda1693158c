//! The description of an experiment: which roles run on which hosts, and what lies between their sites.
//!
//! A topology is a TOML file. Reading it is pure: everything that can be wrong with it is found here, before
//! anything is started.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use batzen_protocol::Currency;
use serde::{Deserialize, Serialize};

use super::agent::DELAY_MAX_MS;

/// The largest number of hosts, which keeps addresses of namespaces short.
const HOSTS_MAX: usize = 200;
/// The largest number of sites.
const SITES_MAX: usize = 100;
/// The levels of logs.
const LOG_LEVELS: [&str; 4] = ["ERROR", "WARNING", "INFO", "DEBUG"];
/// The largest number of instances of one role.
const COUNT_MAX: u16 = 64;

/// An experiment's hosts, roles and links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Its name, of lower-case letters, digits and hyphens.
    pub name: String,
    /// The currency of its money.
    #[serde(default = "default_currency")]
    pub currency: String,
    /// Key size of RSA denominations in bits.
    #[serde(default = "default_rsa_bits")]
    pub rsa_bits: u32,
    /// The level of its services' logs: ERROR, WARNING, INFO or DEBUG. From INFO on they have a line for each request
    /// that changes something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// The configuration file of ssh, if it is not the user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_config: Option<PathBuf>,
    /// The hosts, by name.
    pub hosts: BTreeMap<String, Host>,
    /// The roles on them.
    #[serde(rename = "role")]
    pub roles: Vec<RoleSpec>,
    /// The links between sites. Hosts of one site, and sites without a link, are connected without delay.
    #[serde(default, rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// The steps of `batzen-lab experiment` once everything is up.
    #[serde(default, rename = "step", skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

/// A step of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Step {
    /// A command of `batzen-lab`, without its name and `--dir`.
    Run {
        /// Its words, such as `["load", "ramp"]`.
        run: Vec<String>,
    },
    /// A pause.
    Wait {
        /// Its length in seconds.
        wait_s: f64,
    },
}

fn default_currency() -> String {
    "KUDOS".to_owned()
}

const fn default_rsa_bits() -> u32 {
    2048
}

/// A machine, or a part of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The way to it.
    #[serde(default)]
    pub kind: HostKind,
    /// The site where it stands.
    #[serde(default = "default_site")]
    pub site: String,
    /// For `ssh`: the address that the other hosts use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// For `ssh`: the destination of the ssh command, if it is not the address: `user@name` or a name of ssh's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<String>,
    /// For `ssh`: the directory for everything that runs there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// For `container`: the image of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// For `container`: a directory with its files, in place of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<PathBuf>,
    /// The directory with the programs `batzen` and `batzen-lab`; for `ssh` the default is the search path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin_dir: Option<PathBuf>,
}

impl Host {
    /// Whether it has the files that a container needs, and another host has none.
    fn check_container(&self) -> Result<(), &'static str> {
        let has_files = match (&self.image, &self.rootfs) {
            (None, None) => false,
            (Some(image), None) if !image.is_empty() && !image.starts_with('-') => true,
            (None, Some(rootfs)) if rootfs.is_absolute() => true,
            _ => return Err("expected either `image = \"debian:12\"` or `rootfs = \"/srv/debian\"`"),
        };
        match (self.kind, has_files) {
            (HostKind::Container, false) => {
                Err("a host of kind container needs `image = \"debian:12\"` or `rootfs = \"/srv/debian\"`")
            }
            (HostKind::Container, true) | (_, false) => Ok(()),
            (_, true) => Err("only a host of kind container has image and rootfs"),
        }
    }
}

fn default_site() -> String {
    "main".to_owned()
}

/// A way to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostKind {
    /// Processes of this machine, on 127.0.0.1.
    #[default]
    Local,
    /// A network namespace of this machine, which needs root.
    Namespace,
    /// A container of Podman on this machine, in a network namespace of its own, which needs root.
    Container,
    /// Another machine.
    Ssh,
}

impl HostKind {
    /// Whether it has a network namespace on this machine.
    #[must_use]
    pub const fn has_namespace(self) -> bool {
        matches!(self, Self::Namespace | Self::Container)
    }
}

/// A kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// PostgreSQL for the exchange's rows.
    Postgres,
    /// A standby that has every commit before it is acknowledged.
    Standby,
    /// A Citus cluster for the exchange's rows: the first node is the coordinator, the others are its workers.
    Citus,
    /// The bank.
    Bank,
    /// The switch's ledger, if it is a process of its own.
    Ledger,
    /// The interbank switch.
    Switch,
    /// A signer, which holds the exchange's private keys; the second and later ones follow the first.
    Signer,
    /// A process of the exchange that serves its API.
    Exchange,
    /// The exchange's workers, each a process.
    Worker,
    /// A proxy with TLS before the exchange's processes.
    Proxy,
    /// A merchant backend.
    Merchant,
    /// An auditor that follows the exchange.
    Auditor,
    /// Wallets, and participants of the switch, that put load on everything.
    Load,
    /// Prometheus, which records every service's metrics.
    Prometheus,
}

impl Role {
    /// All roles, in the order in which they are started.
    pub const ALL: [Self; 14] = [
        Self::Postgres,
        Self::Standby,
        Self::Citus,
        Self::Bank,
        Self::Ledger,
        Self::Switch,
        Self::Signer,
        Self::Proxy,
        Self::Exchange,
        Self::Worker,
        Self::Merchant,
        Self::Auditor,
        Self::Prometheus,
        Self::Load,
    ];

    /// Its name in topologies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Standby => "standby",
            Self::Citus => "citus",
            Self::Bank => "bank",
            Self::Ledger => "ledger",
            Self::Switch => "switch",
            Self::Signer => "signer",
            Self::Exchange => "exchange",
            Self::Worker => "worker",
            Self::Proxy => "proxy",
            Self::Merchant => "merchant",
            Self::Auditor => "auditor",
            Self::Load => "load",
            Self::Prometheus => "prometheus",
        }
    }

    /// Whether an experiment may have several.
    const fn may_repeat(self) -> bool {
        matches!(
            self,
            Self::Citus | Self::Signer | Self::Exchange | Self::Worker | Self::Merchant | Self::Load
        )
    }

    /// Whether its instances run the program `batzen`.
    #[must_use]
    pub const fn is_of_batzen(self) -> bool {
        !(self.is_postgres() || matches!(self, Self::Proxy | Self::Load | Self::Prometheus))
    }

    /// Whether its instances are servers of PostgreSQL.
    #[must_use]
    pub const fn is_postgres(self) -> bool {
        matches!(self, Self::Postgres | Self::Standby | Self::Citus)
    }

    /// The ports that an instance listens at on a host of its own.
    #[must_use]
    pub const fn ports(self) -> &'static [u16] {
        match self {
            // Not those of the server, the Prometheus and the exporters that Debian's packages start. The second is its
            // exporter's.
            Self::Postgres => &[5532, 9287],
            Self::Standby => &[5533, 9288],
            Self::Citus => &[5632, 9387],
            Self::Bank => &[8082],
            // The binary protocol, and HTTP.
            Self::Ledger => &[3001, 3002],
            // The participants' interface, and the operators'.
            Self::Switch => &[8090, 8091],
            // The signing port and the page's.
            Self::Signer => &[7070, 7071],
            // The API, and the stream for the auditor.
            Self::Exchange => &[8081, 8090],
            // The pages of its workers.
            Self::Worker => &[9181, 9182, 9183, 9184],
            // Its page, and the callbacks of the participants that it plays.
            Self::Load => &[9590, 9701, 9702, 9703, 9704, 9705, 9706],
            // Its own, that of its exporter, that of the times in its log, and the one at which it tells its exporter.
            Self::Proxy => &[8443, 9213, 9313, 8543],
            Self::Merchant => &[9966],
            Self::Auditor => &[8083],
            Self::Prometheus => &[9490],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A worker of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Worker {
    /// Credits reserves with what came in at the bank.
    Wirewatch,
    /// Adds up the deposits of each merchant.
    Aggregator,
    /// Has the bank pay merchants.
    Transfer,
    /// Pays back what is left in old reserves.
    Closer,
}

impl Worker {
    /// All workers.
    pub const ALL: [Self; 4] = [Self::Wirewatch, Self::Aggregator, Self::Transfer, Self::Closer];

    /// Its name in topologies, and its command.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wirewatch => "wirewatch",
            Self::Aggregator => "aggregator",
            Self::Transfer => "transfer",
            Self::Closer => "closer",
        }
    }
}

/// Instances of a role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleSpec {
    /// The role.
    pub role: Role,
    /// The hosts that take turns.
    pub hosts: Vec<String>,
    /// The number of instances; by default one on each host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u16>,
    /// For `worker`: the workers that each instance runs, by default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<Worker>>,
    /// The directory of another version's `batzen` on these hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin_dir: Option<PathBuf>,
    /// Options of its configuration, by section.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// The share of one core's time for which each instance may run, as on a slow machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_share: Option<f64>,
    /// The milliseconds that each sync of an instance's files takes longer, as on a disk that fails. Only with it, also if it is
    /// 0, `disturb slow-disk` can change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_delay_ms: Option<f64>,
}

/// The connection between two sites, in both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The two sites.
    pub between: [String; 2],
    /// The round trip in milliseconds.
    #[serde(default)]
    pub rtt_ms: f64,
    /// The largest random addition to each way, in milliseconds.
    #[serde(default)]
    pub jitter_ms: f64,
    /// The share of packets that get lost.
    #[serde(default)]
    pub loss: f64,
    /// Megabits per second in each direction; 0: as fast as the machine.
    #[serde(default)]
    pub bandwidth_mbit: f64,
}

/// Reasons why a topology cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The text is not TOML, or has unknown or malformed members.
    #[error("{0}")]
    Syntax(String),
    /// A member has a value that makes no sense.
    #[error("{member}: {reason}")]
    Member {
        /// The member, such as `hosts.core`.
        member: String,
        /// The reason, with an example where one helps.
        reason: String,
    },
}

fn wrong(member: impl fmt::Display, reason: impl fmt::Display) -> TopologyError {
    TopologyError::Member { member: member.to_string(), reason: reason.to_string() }
}

fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=20).contains(&text.len()) && text.bytes().all(is_inner) && !text.starts_with('-')
}

impl Topology {
    /// Reads a topology.
    ///
    /// # Errors
    /// Anything that would keep it from being set up, with the member's name.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let topology: Self = toml::from_str(text)
            .map_err(|error| TopologyError::Syntax(error.to_string().trim().to_owned()))?;
        topology.check()?;
        Ok(topology)
    }

    fn check(&self) -> Result<(), TopologyError> {
        const NAME: &str = "a name has 1 to 20 lower-case letters, digits and hyphens, such as `core-1`";
        if !is_name(&self.name) {
            return Err(wrong("name", NAME));
        }
        self.currency.parse::<Currency>().map_err(|error| wrong("currency", error))?;
        if !(1024..=4096).contains(&self.rsa_bits) {
            return Err(wrong("rsa_bits", "expected 1024 to 4096"));
        }
        if self.log.as_ref().is_some_and(|level| !LOG_LEVELS.contains(&level.as_str())) {
            return Err(wrong("log", format_args!("expected one of {}", LOG_LEVELS.join(", "))));
        }
        if self.hosts.is_empty() || self.hosts.len() > HOSTS_MAX {
            return Err(wrong("hosts", format_args!("expected 1 to {HOSTS_MAX} hosts")));
        }
        for (name, host) in &self.hosts {
            let member = format!("hosts.{name}");
            if !is_name(name) || !is_name(&host.site) {
                return Err(wrong(member, NAME));
            }
            if name == super::hosts::NETWORK {
                return Err(wrong(member, "this name is the links' own; choose another"));
            }
            if host.kind == HostKind::Ssh {
                if host.address.is_none() || host.dir.as_ref().is_none_or(|dir| !dir.is_absolute()) {
                    let example = "`address = \"10.0.0.7\"` and `dir = \"/root/batzen-lab\"`";
                    return Err(wrong(member, format_args!("a host of kind ssh needs {example}")));
                }
            } else if host.address.is_some() || host.ssh.is_some() || host.dir.is_some() {
                return Err(wrong(member, "only a host of kind ssh has address, ssh and dir"));
            }
            host.check_container().map_err(|expected| wrong(format!("hosts.{name}"), expected))?;
        }
        let kinds: BTreeSet<_> = self.hosts.values().map(|host| host.kind as u8).collect();
        if kinds.contains(&(HostKind::Local as u8)) && kinds.len() > 1 {
            return Err(wrong(
                "hosts",
                "hosts of kind local listen on 127.0.0.1, where no other host reaches them",
            ));
        }
        if self.sites().len() > SITES_MAX {
            return Err(wrong("hosts", format_args!("at most {SITES_MAX} sites")));
        }
        self.check_roles()?;
        self.check_links()?;
        self.check_steps()
    }

    fn check_steps(&self) -> Result<(), TopologyError> {
        const COMMANDS: [&str; 7] = ["status", "load", "scale", "upgrade", "disturb", "ssh", "check"];
        for (step, number) in self.steps.iter().zip(1..) {
            let member = format!("step {number}");
            match step {
                Step::Run { run } if !run.first().is_some_and(|word| COMMANDS.contains(&word.as_str())) => {
                    let example = "run = [\"load\", \"ramp\"]";
                    return Err(wrong(
                        member,
                        format_args!("run begins with one of {}, such as {example}", COMMANDS.join(", ")),
                    ));
                }
                Step::Wait { wait_s } if !(wait_s.is_finite() && (0.0..=1e6).contains(wait_s)) => {
                    return Err(wrong(member, "wait_s is 0 or more"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_roles(&self) -> Result<(), TopologyError> {
        self.roles.iter().try_for_each(|spec| self.check_role(spec))?;
        let runs = |worker| self.roles.iter().any(|spec| spec.workers().contains(&worker));
        if self.count(Role::Worker) > 0
            && let Some(missing) = Worker::ALL.into_iter().find(|worker| !runs(*worker))
        {
            return Err(wrong("role worker", format_args!("no instance runs {}", missing.name())));
        }
        for role in Role::ALL {
            if self.count(role) > 1 && !role.may_repeat() {
                let why = match role {
                    Role::Switch => "count: a switch keeps its state in memory, so it is one process",
                    _ => "an experiment has at most one",
                };
                return Err(wrong(format_args!("role {role}"), why));
            }
        }
        if self.count(Role::Switch) > 0 && self.currency.len() != 3 {
            return Err(wrong("currency", "a switch clears currencies of three letters, such as EUR"));
        }
        if self.count(Role::Citus) == 1 {
            let why = "a cluster is a coordinator and at least one worker, so count is 2 or more";
            return Err(wrong("role citus", why));
        }
        for role in [Role::Postgres, Role::Standby] {
            if self.count(Role::Citus) > 0 && self.count(role) > 0 {
                return Err(wrong(
                    format_args!("role {role}"),
                    "the exchange's rows are on the Citus cluster",
                ));
            }
        }
        let needs = |role, needed, why: &str| {
            if self.count(role) > 0 && self.count(needed) == 0 {
                return Err(wrong(format_args!("role {role}"), format_args!("{why}: add a role {needed}")));
            }
            Ok(())
        };
        let database = if self.count(Role::Citus) > 0 { Role::Citus } else { Role::Postgres };
        needs(Role::Exchange, Role::Bank, "an exchange has its account at a bank")?;
        needs(Role::Worker, database, "workers of their own share a database with the exchange")?;
        needs(Role::Worker, Role::Signer, "workers of their own share its keys")?;
        needs(Role::Standby, Role::Postgres, "a standby follows a primary")?;
        needs(Role::Proxy, Role::Exchange, "the proxy stands before an exchange")?;
        needs(Role::Merchant, Role::Exchange, "a merchant needs an exchange")?;
        needs(Role::Auditor, Role::Exchange, "an auditor follows an exchange")?;
        needs(Role::Signer, Role::Exchange, "a signer signs for an exchange")?;
        needs(Role::Ledger, Role::Switch, "a ledger of its own is that of a switch")?;
        if self.count(Role::Switch) == 0 {
            needs(Role::Load, Role::Exchange, "wallets need an exchange")?;
        }
        if self.count(Role::Exchange) > 1 {
            needs(Role::Exchange, database, "several processes share a database")?;
            needs(Role::Exchange, Role::Signer, "several processes share their keys")?;
            needs(Role::Exchange, Role::Proxy, "several processes need one address")?;
        }
        Ok(())
    }

    fn check_role(&self, spec: &RoleSpec) -> Result<(), TopologyError> {
        let refuse = |reason: &dyn fmt::Display| Err(wrong(format_args!("role {}", spec.role), reason));
        if spec.hosts.is_empty() {
            return refuse(&"hosts is empty");
        }
        if let Some(unknown) = spec.hosts.iter().find(|host| !self.hosts.contains_key(*host)) {
            return refuse(&format_args!("there is no host {unknown}"));
        }
        if !(1..=COUNT_MAX).contains(&spec.instances()) {
            return refuse(&format_args!("count must be 1 to {COUNT_MAX}"));
        }
        if spec.cpu_share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
            return refuse(&"cpu_share must be above 0 and at most 1, such as 0.25");
        }
        if spec.disk_delay_ms.is_some_and(|delay_ms| !(0.0..=DELAY_MAX_MS).contains(&delay_ms)) {
            return refuse(&format_args!("disk_delay_ms must be 0 to {DELAY_MAX_MS}"));
        }
        if let Some(workers) = &spec.workers {
            if spec.role != Role::Worker {
                return refuse(&"only the role worker has workers");
            }
            let different: BTreeSet<_> = workers.iter().collect();
            if workers.is_empty() || different.len() < workers.len() {
                return refuse(
                    &"workers names at least one, each once, such as [\"aggregator\", \"transfer\"]",
                );
            }
        }
        match &spec.bin_dir {
            Some(_) if !spec.role.is_of_batzen() => refuse(&"it does not run batzen, so it has no bin_dir"),
            Some(dir) if !dir.is_absolute() => refuse(&"bin_dir must begin with /, such as /opt/batzen-0.1"),
            _ => Ok(()),
        }
    }

    fn check_links(&self) -> Result<(), TopologyError> {
        let sites = self.sites();
        let mut seen = BTreeSet::new();
        for link in &self.links {
            let [one, two] = &link.between;
            let member = format!("link {one} – {two}");
            if let Some(unknown) = [one, two].into_iter().find(|site| !sites.contains(site)) {
                return Err(wrong(member, format_args!("no host is at site {unknown}")));
            }
            let mut pair = [one, two];
            pair.sort();
            if one == two || !seen.insert(pair) {
                return Err(wrong(member, "a link is between two sites, and there is one between them"));
            }
            link.check()?;
        }
        if !self.links.is_empty() && self.hosts.values().any(|host| !host.kind.has_namespace()) {
            return Err(wrong(
                "link",
                "delays are emulated between hosts of kind namespace or container only",
            ));
        }
        Ok(())
    }

    /// The names of all sites.
    #[must_use]
    pub fn sites(&self) -> BTreeSet<&String> {
        self.hosts.values().map(|host| &host.site).collect()
    }

    /// The ports that an instance listens at on a host of its own.
    #[must_use]
    pub fn ports(&self, spec: &RoleSpec) -> &'static [u16] {
        let all = spec.role.ports();
        match spec.role {
            Role::Worker => &all[..spec.workers().len()],
            Role::Load if self.count(Role::Switch) == 0 => &all[..1],
            // Exporters are there for Prometheus alone.
            role if (role.is_postgres() || role == Role::Proxy) && self.count(Role::Prometheus) == 0 => {
                &all[..1]
            }
            _ => all,
        }
    }

    /// The number of instances of a role.
    #[must_use]
    pub fn count(&self, role: Role) -> u16 {
        self.roles.iter().filter(|spec| spec.role == role).map(RoleSpec::instances).sum()
    }
}

impl Link {
    /// Checks that its properties are possible.
    ///
    /// # Errors
    /// When one is negative, or a share is not below 1.
    pub fn check(&self) -> Result<(), TopologyError> {
        let is_time = |value: f64| value.is_finite() && (0.0..=60_000.0).contains(&value);
        let is_possible = is_time(self.rtt_ms)
            && is_time(self.jitter_ms)
            && self.bandwidth_mbit.is_finite()
            && self.bandwidth_mbit >= 0.0
            && (0.0..1.0).contains(&self.loss);
        let [one, two] = &self.between;
        if is_possible {
            Ok(())
        } else {
            Err(wrong(
                format_args!("link {one} – {two}"),
                "rtt_ms and jitter_ms are 0 to 60000, bandwidth_mbit is 0 or more, loss is 0 or more and below 1",
            ))
        }
    }
}

impl RoleSpec {
    /// The number of instances.
    #[must_use]
    pub fn instances(&self) -> u16 {
        self.count.unwrap_or_else(|| u16::try_from(self.hosts.len()).unwrap_or(u16::MAX))
    }

    /// The workers that each instance runs.
    #[must_use]
    pub fn workers(&self) -> &[Worker] {
        match &self.workers {
            Some(workers) => workers,
            None if self.role == Role::Worker => &Worker::ALL,
            None => &[],
        }
    }

    /// The host of each instance.
    pub fn placed(&self) -> impl Iterator<Item = &String> {
        self.hosts.iter().cycle().take(usize::from(self.instances()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
        name = 'small'
        [hosts.one]
        [[role]]
        role = 'bank'
        hosts = ['one']
        [[role]]
        role = 'exchange'
        hosts = ['one']
    ";

    #[test]
    fn defaults_are_those_of_one_machine() {
        let topology = Topology::parse(SMALL).unwrap();
        assert_eq!(topology.hosts["one"].kind, HostKind::Local);
        assert_eq!((topology.currency.as_str(), topology.rsa_bits), ("KUDOS", 2048));
        assert_eq!((topology.count(Role::Exchange), topology.count(Role::Load)), (1, 0));
    }

    #[test]
    fn errors_name_the_member() {
        let of = |old: &str, new: &str| {
            assert!(SMALL.contains(old));
            Topology::parse(&SMALL.replace(old, new)).unwrap_err().to_string()
        };
        assert!(of("'small'", "'Small Town'").starts_with("name: a name has"));
        assert!(
            of("name = 'small'", "name = 'small'\nlog = 'LOUD'").starts_with("log: expected one of ERROR")
        );
        assert!(of("role = 'bank'", "role = 'bakery'").contains("unknown variant `bakery`"));
        assert!(
            of("[hosts.one]", "[hosts.one]\nkind = 'ssh'").starts_with("hosts.one: a host of kind ssh needs")
        );
        assert!(of("[hosts.one]", "[hosts.one]\ncolour = 'red'").contains("unknown field `colour`"));
        assert_eq!(of("hosts = ['one']", "hosts = ['two']"), "role bank: there is no host two");
        assert!(of("role = 'bank'", "role = 'worker'").contains("add a role bank"));
        let switch = of("role = 'exchange'", "role = 'switch'\ncount = 2");
        assert_eq!(switch, "role switch: count: a switch keeps its state in memory, so it is one process");
        assert!(of("role = 'exchange'", "role = 'switch'").starts_with("currency: a switch clears"));
        assert!(of("role = 'exchange'", "role = 'ledger'").contains("add a role switch"));
        let two = of("role = 'exchange'", "role = 'exchange'\ncount = 2");
        assert_eq!(two, "role exchange: several processes share a database: add a role postgres");
        let on_citus = |more: &str| {
            let text = format!("{SMALL}\n[[role]]\nrole = 'citus'\nhosts = ['one']\n{more}");
            Topology::parse(&text).map(drop).map_err(|error| error.to_string())
        };
        assert!(on_citus("").unwrap_err().starts_with("role citus: a cluster is a coordinator and at least"));
        assert_eq!(on_citus("count = 3"), Ok(()));
        for role in ["postgres", "standby"] {
            let both = on_citus(&format!("count = 2\n[[role]]\nrole = '{role}'\nhosts = ['one']"));
            assert_eq!(both, Err(format!("role {role}: the exchange's rows are on the Citus cluster")));
        }
        let slow = of("role = 'exchange'", "role = 'exchange'\ncpu_share = 0.0");
        assert!(slow.contains("cpu_share must be above 0"));
        let slow = of("role = 'exchange'", "role = 'exchange'\ndisk_delay_ms = -1");
        assert_eq!(slow, "role exchange: disk_delay_ms must be 0 to 60000");
        assert_eq!(
            of("role = 'bank'", "role = 'bank'\nworkers = ['closer']"),
            "role bank: only the role worker has workers"
        );
        assert!(of("role = 'bank'", "role = 'bank'\nbin_dir = 'old'").contains("bin_dir must begin with /"));
        assert!(
            of("role = 'bank'", "role = 'proxy'\nbin_dir = '/old'").contains("it does not run batzen"),
            "nginx is none of its programs"
        );
        let some = |workers: &str| {
            let worker = format!("[[role]]\nrole = 'worker'\nhosts = ['one']\nworkers = {workers}");
            let others =
                ["postgres", "signer"].map(|role| format!("[[role]]\nrole = '{role}'\nhosts = ['one']\n"));
            let text = format!("{SMALL}\n{}{worker}", others.concat());
            Topology::parse(&text).unwrap_err().to_string()
        };
        assert!(some("['closer', 'closer']").contains("each once"));
        assert_eq!(some("['wirewatch', 'aggregator', 'closer']"), "role worker: no instance runs transfer");
        let step = format!("{SMALL}\n[[step]]\nrun = ['dance']");
        assert!(
            Topology::parse(&step).unwrap_err().to_string().starts_with("step 1: run begins with one of")
        );
        let link = format!("{SMALL}\n[[link]]\nbetween = ['main', 'moon']");
        assert_eq!(
            Topology::parse(&link).unwrap_err().to_string(),
            "link main – moon: no host is at site moon"
        );
    }

    #[test]
    fn instances_take_turns_on_their_hosts() {
        let spec = RoleSpec {
            role: Role::Load,
            hosts: vec!["a".into(), "b".into()],
            count: Some(3),
            workers: None,
            bin_dir: None,
            settings: BTreeMap::new(),
            cpu_share: None,
            disk_delay_ms: None,
        };
        assert_eq!(spec.placed().collect::<Vec<_>>(), ["a", "b", "a"]);
    }
}
