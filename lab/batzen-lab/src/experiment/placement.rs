//! The plan of an experiment: every instance with its host, address and ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::topology::{HostKind, Role, RoleSpec, Topology, Worker};

/// A process that the experiment runs, or for workers a group of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Its name, such as `exchange-2`.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its number among those of the role, from 0.
    pub index: u16,
    /// Its host.
    pub host: String,
    /// The address at which the other hosts reach it.
    pub address: String,
    /// Its ports, in the order of [`Role::ports`]; of workers a port each.
    pub ports: Vec<u16>,
    /// The workers that it runs, each a process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<Worker>,
    /// The directory of its `batzen`, if it is not that of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin_dir: Option<PathBuf>,
    /// The version of its `batzen`, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The options of its configuration, by section.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// The share of one core's time for which it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_share: Option<f64>,
    /// The milliseconds that each sync of its files takes longer at first, if its disk may be slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_delay_ms: Option<f64>,
    /// Whether it has ended for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_removed: bool,
}

impl Instance {
    /// An instance as its role says, with host, address and ports.
    pub(super) fn new(
        spec: &RoleSpec,
        name: String,
        index: u16,
        (host, address, ports): (&str, String, Vec<u16>),
    ) -> Self {
        Self {
            name,
            role: spec.role,
            index,
            host: host.to_owned(),
            address,
            ports,
            workers: spec.workers().to_vec(),
            bin_dir: spec.bin_dir.clone(),
            version: None,
            settings: spec.settings.clone(),
            cpu_share: spec.cpu_share,
            disk_delay_ms: spec.disk_delay_ms,
            is_removed: false,
        }
    }

    /// The names of its processes.
    #[must_use]
    pub fn processes(&self) -> Vec<String> {
        match self.role {
            Role::Worker => {
                self.workers.iter().map(|worker| format!("{}-{}", self.name, worker.name())).collect()
            }
            _ => vec![self.name.clone()],
        }
    }

    /// The names of the processes that show Prometheus what its program knows of itself.
    #[must_use]
    pub fn exporters(&self) -> Vec<String> {
        let ends: &[&str] = match self.role {
            _ if self.ports.len() < 2 => &[],
            Role::Proxy => &["exporter", "times"],
            role if role.is_postgres() => &["exporter"],
            _ => &[],
        };
        ends.iter().map(|end| format!("{}-{end}", self.name)).collect()
    }

    /// The participants of the switch that it plays, and the ports of their callbacks.
    pub fn participants(&self) -> impl Iterator<Item = (String, u16)> {
        let ports = if self.role == Role::Load { self.ports.get(1..).unwrap_or_default() } else { &[] };
        ports.iter().zip(1..).map(|(port, number)| (format!("{}-{number}", self.name), *port))
    }

    /// Its first port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.first().copied().unwrap_or(0)
    }

    /// Address and first port.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.address, self.port())
    }

    /// The address as a number, where it is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.address.parse().ok()
    }
}

/// The address of a host in a namespace: 10, the experiment's number, its site's, its own.
#[must_use]
pub fn namespace_address(topology: &Topology, network: u8, host: &str) -> Ipv4Addr {
    let nth = |place: Option<usize>| u8::try_from(place.unwrap_or(0) + 1).unwrap_or(u8::MAX);
    let site = topology.hosts.get(host).map_or("", |host| host.site.as_str());
    let site = nth(topology.sites().into_iter().position(|found| found == site));
    Ipv4Addr::new(10, network, site, nth(topology.hosts.keys().position(|found| found == host)))
}

/// The address at which other hosts reach a host.
#[must_use]
pub fn address(topology: &Topology, network: u8, name: &str) -> String {
    match topology.hosts.get(name) {
        Some(host) if host.kind.has_namespace() => namespace_address(topology, network, name).to_string(),
        Some(host) => host.address.clone().unwrap_or_else(|| "127.0.0.1".to_owned()),
        None => String::new(),
    }
}

/// The address of a service of an experiment.
pub(super) fn socket_addr(authority: &str) -> anyhow::Result<SocketAddr> {
    let mut found = authority.to_socket_addrs().with_context(|| authority.to_owned())?;
    found.next().with_context(|| format!("{authority} has no address"))
}

/// The address at which an instance shows its metrics, or its exporter does.
pub(super) fn metrics_authority(instance: &Instance) -> Option<String> {
    match instance.role {
        // HTTP beside the binary protocol, the operators' port, the page of a signer or of an exporter.
        Role::Ledger
        | Role::Switch
        | Role::Signer
        | Role::Postgres
        | Role::Standby
        | Role::Citus
        | Role::Proxy => Some(format!("{}:{}", instance.address, instance.ports.get(1)?)),
        Role::Bank | Role::Exchange | Role::Merchant | Role::Auditor | Role::Load => {
            Some(instance.authority())
        }
        Role::Worker | Role::Prometheus => None,
    }
}

/// Places every instance. `free_port` names a free port of this machine, for hosts that share it.
///
/// # Errors
/// As `free_port`.
pub fn place<E>(
    topology: &Topology,
    network: u8,
    mut free_port: impl FnMut() -> Result<u16, E>,
) -> Result<Vec<Instance>, E> {
    let mut instances = Vec::new();
    let mut used = BTreeSet::new();
    for role in Role::ALL {
        let is_single = topology.count(role) == 1;
        let specs = topology.roles.iter().filter(|spec| spec.role == role);
        let placed = specs.flat_map(|spec| spec.placed().map(move |host| (spec, host)));
        for ((spec, host), index) in placed.zip(0_u16..) {
            let name = if is_single { role.name().to_owned() } else { format!("{role}-{}", index + 1) };
            let is_local = topology.hosts.get(host).is_some_and(|host| host.kind == HostKind::Local);
            let mut ports = Vec::with_capacity(topology.ports(spec).len());
            for base in topology.ports(spec) {
                let port = if is_local {
                    free_port()?
                } else {
                    (*base..).step_by(100).find(|port| used.insert((host.clone(), *port))).unwrap_or(*base)
                };
                ports.push(port);
            }
            let address = address(topology, network, host);
            instances.push(Instance::new(spec, name, index, (host, address, ports)));
        }
    }
    Ok(instances)
}

/// The plan as a table.
#[must_use]
pub fn table(topology: &Topology, instances: &[Instance]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<14}{:<12}{:<10}{:<12}{:<16}{:<10}ports",
        "instance", "host", "kind", "site", "address", "version"
    );
    for instance in instances {
        let host = topology.hosts.get(&instance.host).cloned().unwrap_or_default();
        let kind = format!("{:?}", host.kind).to_lowercase();
        let ports: Vec<String> = instance.ports.iter().map(u16::to_string).collect();
        let line = format!(
            "{:<14}{:<12}{kind:<10}{:<12}{:<16}{:<10}{}",
            instance.name,
            instance.host,
            host.site,
            instance.address,
            instance.version.as_deref().unwrap_or("–"),
            ports.join(", ")
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for link in &topology.links {
        let [one, two] = &link.between;
        let _ = write!(text, "link {one} – {two}: {} ms round trip", link.rtt_ms);
        for (value, what) in
            [(link.jitter_ms, "ms jitter"), (link.loss * 100.0, "% loss"), (link.bandwidth_mbit, "Mbit/s")]
        {
            if value > 0.0 {
                let _ = write!(text, ", {value} {what}");
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_SITES: &str = "
        name = 'two'
        [hosts.core]
        kind = 'namespace'
        site = 'north'
        [hosts.gen]
        kind = 'namespace'
        site = 'south'
        [[role]]
        role = 'bank'
        hosts = ['core']
        [[role]]
        role = 'exchange'
        hosts = ['core']
        [[role]]
        role = 'load'
        hosts = ['gen']
        count = 2
        [[link]]
        between = ['north', 'south']
        rtt_ms = 10
        loss = 0.01
    ";

    #[test]
    fn every_instance_has_a_host_an_address_and_ports() {
        let topology = Topology::parse(TWO_SITES).unwrap();
        let instances = place(&topology, 77, || Err("no local host")).unwrap();
        let of = |name: &str| instances.iter().find(|instance| instance.name == name).unwrap();
        assert_eq!(of("bank").authority(), "10.77.1.1:8082");
        assert_eq!((of("load-1").address.as_str(), of("load-2").port()), ("10.77.2.2", 9690));
        let table = table(&topology, &instances);
        assert!(table.contains("link north – south: 10 ms round trip, 1 % loss"), "{table}");
    }

    #[test]
    fn a_process_belongs_to_one_instance() {
        let text = TWO_SITES.replace("role = 'load'", "role = 'worker'");
        let topology: Topology = toml::from_str(&text).unwrap();
        let instances = place(&topology, 1, || Err("no local host")).unwrap();
        let all: Vec<String> = instances.iter().flat_map(Instance::processes).collect();
        let different: BTreeSet<&String> = all.iter().collect();
        assert_eq!((all.len(), different.len()), (2 + 2 * Worker::ALL.len(), all.len()), "{all:?}");
        assert!(all.contains(&"worker-2-closer".to_owned()), "{all:?}");
    }

    #[test]
    fn an_instance_runs_the_workers_of_its_role() {
        let text = TWO_SITES.replace("role = 'load'", "role = 'worker'\nworkers = ['transfer', 'closer']");
        let topology: Topology = toml::from_str(&text).unwrap();
        let instances = place(&topology, 1, || Err("no local host")).unwrap();
        let second = instances.iter().find(|instance| instance.name == "worker-2").unwrap();
        assert_eq!(second.processes(), ["worker-2-transfer", "worker-2-closer"]);
        assert_eq!(second.ports, [9281, 9282], "each has a page, beside those of the first instance");
    }

    #[test]
    fn exporters_are_there_for_prometheus_alone() {
        let citus = TWO_SITES.replace("role = 'bank'", "role = 'citus'\ncount = 2");
        let exporters = |text: &str| {
            let topology: Topology = toml::from_str(text).unwrap();
            let instances = place(&topology, 1, || Err("no local host")).unwrap();
            let pages =
                instances.iter().filter(|found| found.role == Role::Citus).filter_map(metrics_authority);
            (instances.iter().flat_map(Instance::exporters).collect::<Vec<_>>(), pages.collect::<Vec<_>>())
        };
        assert_eq!(exporters(&citus), (vec![], vec![]));
        let recorded = format!("{citus}\n[[role]]\nrole = 'prometheus'\nhosts = ['gen']");
        let (names, pages) = exporters(&recorded);
        assert_eq!(names, ["citus-1-exporter", "citus-2-exporter"]);
        assert_eq!(pages, ["10.1.1.1:9387", "10.1.1.1:9487"]);
    }

    #[test]
    fn instances_on_one_host_have_ports_of_their_own() {
        let text = TWO_SITES.replace("role = 'exchange'\n", "role = 'merchant'\ncount = 3\n");
        // Without an exchange the topology would be refused; only the placement matters here.
        let mut topology: Topology = toml::from_str(&text).unwrap();
        let instances = place(&topology, 1, || Err("no local host")).unwrap();
        let ports: Vec<u16> =
            instances.iter().filter(|found| found.role == Role::Merchant).map(Instance::port).collect();
        assert_eq!(ports, [9966, 10_066, 10_166]);
        topology.hosts.values_mut().for_each(|host| host.kind = HostKind::Local);
        let mut next = 40_000;
        let local = place(&topology, 1, || {
            next += 1;
            Ok::<_, ()>(next)
        });
        assert!(local.unwrap().iter().all(|instance| instance.address == "127.0.0.1"));
    }
}
