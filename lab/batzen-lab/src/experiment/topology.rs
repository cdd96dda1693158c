//! The description of an experiment: which roles run on which hosts, and what lies between their sites.
//!
//! A topology is a TOML file. Reading it is pure: everything that can be wrong with it is found here, before
//! anything is started.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use batzen_protocol::Currency;
use serde::{Deserialize, Serialize};

/// The largest number of hosts, which keeps addresses of namespaces short.
const HOSTS_MAX: usize = 200;
/// The largest number of sites.
const SITES_MAX: usize = 100;
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
    /// The directory with the programs `batzen` and `batzen-lab`; for `ssh` the default is the search path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin_dir: Option<PathBuf>,
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
    /// Another machine.
    Ssh,
}

/// A kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// PostgreSQL for the exchange's rows.
    Postgres,
    /// A standby that has every commit before it is acknowledged.
    Standby,
    /// The bank.
    Bank,
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
    /// Wallets that put load on everything.
    Load,
    /// Prometheus, which records every service's metrics.
    Prometheus,
}

impl Role {
    /// All roles, in the order in which they are started.
    pub const ALL: [Self; 11] = [
        Self::Postgres,
        Self::Standby,
        Self::Bank,
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
            Self::Bank => "bank",
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
        matches!(self, Self::Signer | Self::Exchange | Self::Worker | Self::Merchant | Self::Load)
    }

    /// The ports that an instance listens at on a host of its own.
    #[must_use]
    pub const fn ports(self) -> &'static [u16] {
        match self {
            // Not those of the server and of the Prometheus that Debian's packages start.
            Self::Postgres => &[5532],
            Self::Standby => &[5533],
            Self::Bank => &[8082],
            // The signing port and the page's.
            Self::Signer => &[7070, 7071],
            // The API, and the stream for the auditor.
            Self::Exchange => &[8081, 8090],
            // The pages of wirewatch, aggregator, transfer and closer.
            Self::Worker => &[9181, 9182, 9183, 9184],
            // The page.
            Self::Load => &[9590],
            Self::Proxy => &[8443],
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
    /// Options of its configuration, by section.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// The share of one core's time for which each instance may run, as on a slow machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_share: Option<f64>,
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
        const COMMANDS: [&str; 6] = ["status", "load", "scale", "disturb", "ssh", "check"];
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
        for spec in &self.roles {
            let member = format!("role {}", spec.role);
            if spec.hosts.is_empty() {
                return Err(wrong(member, "hosts is empty"));
            }
            if let Some(unknown) = spec.hosts.iter().find(|host| !self.hosts.contains_key(*host)) {
                return Err(wrong(member, format_args!("there is no host {unknown}")));
            }
            if !(1..=COUNT_MAX).contains(&spec.instances()) {
                return Err(wrong(member, format_args!("count must be 1 to {COUNT_MAX}")));
            }
            if spec.cpu_share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
                return Err(wrong(member, "cpu_share must be above 0 and at most 1, such as 0.25"));
            }
        }
        for role in Role::ALL {
            if self.count(role) > 1 && !role.may_repeat() {
                return Err(wrong(format_args!("role {role}"), "an experiment has at most one"));
            }
        }
        let needs = |role, needed, why: &str| {
            if self.count(role) > 0 && self.count(needed) == 0 {
                return Err(wrong(format_args!("role {role}"), format_args!("{why}: add a role {needed}")));
            }
            Ok(())
        };
        needs(Role::Exchange, Role::Bank, "an exchange has its account at a bank")?;
        needs(Role::Worker, Role::Postgres, "workers of their own share a database with the exchange")?;
        needs(Role::Standby, Role::Postgres, "a standby follows a primary")?;
        needs(Role::Proxy, Role::Exchange, "the proxy stands before an exchange")?;
        needs(Role::Merchant, Role::Exchange, "a merchant needs an exchange")?;
        needs(Role::Auditor, Role::Exchange, "an auditor follows an exchange")?;
        needs(Role::Signer, Role::Exchange, "a signer signs for an exchange")?;
        needs(Role::Load, Role::Exchange, "wallets need an exchange")?;
        if self.count(Role::Exchange) > 1 {
            needs(Role::Exchange, Role::Postgres, "several processes share a database")?;
            needs(Role::Exchange, Role::Signer, "several processes share their keys")?;
            needs(Role::Exchange, Role::Proxy, "several processes need one address")?;
        }
        Ok(())
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
        if !self.links.is_empty() && self.hosts.values().any(|host| host.kind != HostKind::Namespace) {
            return Err(wrong("link", "delays are emulated between namespaces only"));
        }
        Ok(())
    }

    /// The names of all sites.
    #[must_use]
    pub fn sites(&self) -> BTreeSet<&String> {
        self.hosts.values().map(|host| &host.site).collect()
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
        assert!(of("role = 'bank'", "role = 'bakery'").contains("unknown variant `bakery`"));
        assert!(
            of("[hosts.one]", "[hosts.one]\nkind = 'ssh'").starts_with("hosts.one: a host of kind ssh needs")
        );
        assert!(of("[hosts.one]", "[hosts.one]\ncolour = 'red'").contains("unknown field `colour`"));
        assert_eq!(of("hosts = ['one']", "hosts = ['two']"), "role bank: there is no host two");
        assert!(of("role = 'bank'", "role = 'worker'").contains("add a role bank"));
        let two = of("role = 'exchange'", "role = 'exchange'\ncount = 2");
        assert_eq!(two, "role exchange: several processes share a database: add a role postgres");
        let slow = of("role = 'exchange'", "role = 'exchange'\ncpu_share = 0.0");
        assert!(slow.contains("cpu_share must be above 0"));
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
            settings: BTreeMap::new(),
            cpu_share: None,
        };
        assert_eq!(spec.placed().collect::<Vec<_>>(), ["a", "b", "a"]);
    }
}
