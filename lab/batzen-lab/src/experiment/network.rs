//! Links between sites: delay, jitter, loss and bandwidth of the packets between namespaces, and cuts.
//!
//! Kernels without `netem` cannot delay packets, so a program does. Each host has a second interface, `wan0`, a TUN device
//! whose other end is this program: what a host sends to a site behind a link comes out here as IP packets, waits, and goes
//! into the receiver's device. Packets get lost as on a real line, and TCP notices that itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::io::BufRead as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::hosts::{ip, namespace};
use super::placement::namespace_address;
use super::topology::{Link, Topology};
use crate::bench::load::random::{Numbers, Seed};

/// The largest packet in bytes, as on Ethernet.
const MTU: u16 = 1500;
/// The file, beside the topology, with the orders so far.
pub(super) const ORDERS: &str = "network.jsonl";
/// The most that is under way on all links together, in bytes; packets beyond it are lost.
const UNDER_WAY_BYTES_MAX: usize = 256 << 20;
/// The longest time for which packets wait for bandwidth; those beyond it are lost.
const QUEUE_MAX_NS: u64 = 500_000_000;

/// Arguments of `batzen-lab agent network`.
#[derive(Args, Clone, Debug)]
pub(super) struct NetworkArgs {
    /// The topology
    #[arg(long, value_name = "FILE")]
    topology: PathBuf,
    /// The number of the experiment's network
    #[arg(long)]
    network: u8,
}

/// A change of the links, a line for the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NetworkOrder {
    /// A link has these properties from now on.
    Link(Link),
    /// A site cannot be reached from others, and reaches none.
    Cut(String),
    /// A site can be reached again.
    Heal(String),
}

/// One direction of a link.
#[derive(Clone, Debug, Default, PartialEq)]
struct Pipe {
    delay_ns: u64,
    jitter_ns: u64,
    loss: f64,
    ns_per_byte: f64,
    /// The time at which the packets before have left, in nanoseconds.
    free_at_ns: u64,
    /// The arrival of the last of them: packets do not overtake each other.
    arrived_ns: u64,
    is_cut: bool,
}

impl Pipe {
    fn of(link: &Link) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a topology's times are small and positive"
        )]
        let ns = |ms: f64| (ms * 1e6) as u64;
        Self {
            delay_ns: ns(link.rtt_ms / 2.0),
            jitter_ns: ns(link.jitter_ms),
            loss: link.loss,
            ns_per_byte: if link.bandwidth_mbit > 0.0 { 8_000.0 / link.bandwidth_mbit } else { 0.0 },
            ..Self::default()
        }
    }

    /// The arrival of a packet that comes now; `None`: it gets lost.
    fn admit(&mut self, now_ns: u64, bytes: usize, numbers: &mut Numbers) -> Option<u64> {
        if self.is_cut || self.loss > 0.0 && numbers.unit() < self.loss {
            return None;
        }
        let begins = self.free_at_ns.max(now_ns);
        if begins - now_ns > QUEUE_MAX_NS {
            return None;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a packet takes less than a second"
        )]
        let takes_ns = (bytes as f64 * self.ns_per_byte) as u64;
        self.free_at_ns = begins + takes_ns;
        let jitter_ns = if self.jitter_ns > 0 { numbers.below(self.jitter_ns) } else { 0 };
        self.arrived_ns = self.arrived_ns.max(self.free_at_ns + self.delay_ns + jitter_ns);
        Some(self.arrived_ns)
    }
}

/// A packet under way. The one that arrives first is the greatest.
struct Packet {
    arrives_ns: u64,
    /// Its number, which keeps the order of packets that arrive together.
    number: u64,
    receiver: usize,
    bytes: Vec<u8>,
}

impl Packet {
    fn order(&self) -> (Reverse<u64>, Reverse<u64>) {
        (Reverse(self.arrives_ns), Reverse(self.number))
    }
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Packet {}

impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Packet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// The links, and what is under way on them.
struct Lines {
    pipes: BTreeMap<(String, String), Pipe>,
    under_way: BinaryHeap<Packet>,
    under_way_bytes: usize,
    number: u64,
    numbers: Numbers,
}

impl Lines {
    fn new(links: &[Link]) -> Self {
        let mut lines = Self {
            pipes: BTreeMap::new(),
            under_way: BinaryHeap::new(),
            under_way_bytes: 0,
            number: 0,
            numbers: Seed::new(1).numbers("network"),
        };
        links.iter().for_each(|link| lines.set(link));
        lines
    }

    fn set(&mut self, link: &Link) {
        let [one, two] = &link.between;
        for ends in [(one.clone(), two.clone()), (two.clone(), one.clone())] {
            let is_cut = self.pipes.get(&ends).is_some_and(|pipe| pipe.is_cut);
            self.pipes.insert(ends, Pipe { is_cut, ..Pipe::of(link) });
        }
    }

    fn cut(&mut self, site: &str, is_cut: bool) {
        for ((from, to), pipe) in &mut self.pipes {
            if from == site || to == site {
                pipe.is_cut = is_cut;
            }
        }
    }

    fn obey(&mut self, order: NetworkOrder) {
        match order {
            NetworkOrder::Link(link) => self.set(&link),
            NetworkOrder::Cut(site) => self.cut(&site, true),
            NetworkOrder::Heal(site) => self.cut(&site, false),
        }
    }

    fn send(&mut self, now_ns: u64, ends: &(String, String), receiver: usize, bytes: &[u8]) {
        if self.under_way_bytes + bytes.len() > UNDER_WAY_BYTES_MAX {
            return;
        }
        let Some(pipe) = self.pipes.get_mut(ends) else { return };
        let Some(arrives_ns) = pipe.admit(now_ns, bytes.len(), &mut self.numbers) else { return };
        self.number += 1;
        self.under_way_bytes += bytes.len();
        self.under_way.push(Packet { arrives_ns, number: self.number, receiver, bytes: bytes.to_vec() });
    }

    /// Takes the packet that arrives first.
    fn arrive(&mut self) -> Option<Packet> {
        let packet = self.under_way.pop()?;
        self.under_way_bytes -= packet.bytes.len();
        Some(packet)
    }
}

/// The receiver of an IPv4 packet.
fn receiver(packet: &[u8]) -> Option<Ipv4Addr> {
    if packet.first()? >> 4 != 4 {
        return None;
    }
    let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets))
}

struct Switchboard {
    lines: Mutex<Lines>,
    came: Condvar,
    begin: Instant,
}

impl Switchboard {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Hands packets over at their time.
    fn deliver(&self, devices: &[Arc<SyncDevice>]) {
        let mut lines = self.lock();
        loop {
            let now_ns = self.now_ns();
            match lines.under_way.peek() {
                Some(first) if first.arrives_ns <= now_ns => {
                    if let Some(packet) = lines.arrive() {
                        drop(lines);
                        // A host that is gone loses its packets, like one that is off.
                        let _ = devices[packet.receiver].send(&packet.bytes);
                        lines = self.lock();
                    }
                }
                Some(first) => {
                    let left = Duration::from_nanos(first.arrives_ns - now_ns);
                    lines = self.came.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                None => lines = self.came.wait(lines).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// The sites behind a link, seen from a site.
fn neighbours<'a>(topology: &'a Topology, site: &str) -> BTreeSet<&'a String> {
    let ends = topology.links.iter().map(|link| &link.between);
    ends.filter_map(|[one, two]| match (one == site, two == site) {
        (true, false) => Some(two),
        (false, true) => Some(one),
        _ => None,
    })
    .collect()
}

/// Makes the device of a host and moves it there, with the routes to sites behind links.
fn device(topology: &Topology, network: u8, host: &str, index: usize) -> anyhow::Result<SyncDevice> {
    let name = format!("bz{network}w{index}");
    let device =
        DeviceBuilder::new().name(&name).mtu(MTU).enable(false).build_sync().context("a TUN device")?;
    let space = namespace(network, host);
    ip(&["link", "set", &name, "netns", &space])?;
    ip(&["-n", &space, "link", "set", &name, "name", "wan0"])?;
    ip(&["-n", &space, "link", "set", "wan0", "up"])?;
    let own = namespace_address(topology, network, host);
    let site = topology.hosts.get(host).map_or("", |host| host.site.as_str());
    for neighbour in neighbours(topology, site) {
        let there = topology.hosts.iter().find(|(_, host)| host.site == *neighbour).map(|(name, _)| name);
        let [a, b, c, _] = namespace_address(topology, network, there.map_or("", String::as_str)).octets();
        let route = format!("{a}.{b}.{c}.0/24");
        // Without the device there is no way at all, rather than one without delay.
        ip(&["-n", &space, "route", "replace", "unreachable", &route, "metric", "1000"])?;
        ip(&["-n", &space, "route", "add", &route, "dev", "wan0", "src", &own.to_string()])?;
    }
    Ok(device)
}

/// Runs the links of an experiment.
///
/// # Errors
/// When a device cannot be made.
pub(super) fn run(args: &NetworkArgs) -> anyhow::Result<ExitCode> {
    let text =
        std::fs::read_to_string(&args.topology).with_context(|| args.topology.display().to_string())?;
    let topology = Topology::parse(&text)?;
    let mut devices = Vec::new();
    let mut places: BTreeMap<Ipv4Addr, (usize, String)> = BTreeMap::new();
    for (index, (name, host)) in topology.hosts.iter().enumerate() {
        devices.push(Arc::new(device(&topology, args.network, name, index)?));
        places.insert(namespace_address(&topology, args.network, name), (index, host.site.clone()));
    }
    let mut lines = Lines::new(&topology.links);
    // Orders that came before it was started again.
    let earlier = std::fs::read_to_string(args.topology.with_file_name(ORDERS)).unwrap_or_default();
    for line in earlier.lines() {
        lines.obey(serde_json::from_str(line).with_context(|| ORDERS.to_owned())?);
    }
    let board =
        Arc::new(Switchboard { lines: Mutex::new(lines), came: Condvar::new(), begin: Instant::now() });
    for (device, host) in devices.iter().zip(topology.hosts.values()) {
        let (device, site) = (Arc::clone(device), host.site.clone());
        let (board, places) = (Arc::clone(&board), places.clone());
        std::thread::spawn(move || {
            let mut packet = vec![0; usize::from(MTU) + 64];
            while let Ok(length) = device.recv(&mut packet) {
                let bytes = &packet[..length];
                let Some((index, to)) = receiver(bytes).and_then(|address| places.get(&address)) else {
                    continue;
                };
                board.lock().send(board.now_ns(), &(site.clone(), to.clone()), *index, bytes);
                board.came.notify_one();
            }
        });
    }
    let orders = Arc::clone(&board);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(order) => orders.lock().obey(order),
                Err(error) => tracing::error!(%error, "not an order"),
            }
        }
    });
    println!("ready");
    board.deliver(&devices);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(rtt_ms: f64, loss: f64, bandwidth_mbit: f64) -> Link {
        Link { between: ["a".into(), "b".into()], rtt_ms, jitter_ms: 0.0, loss, bandwidth_mbit }
    }

    #[test]
    fn a_packet_takes_half_the_round_trip_and_its_time_on_the_line() {
        let mut numbers = Seed::new(1).numbers("test");
        let mut pipe = Pipe::of(&link(10.0, 0.0, 8.0));
        // A byte takes a microsecond at 8 Mbit/s, and the second packet waits for the first.
        assert_eq!(pipe.admit(0, 1_000, &mut numbers), Some(6_000_000));
        assert_eq!(pipe.admit(0, 1_000, &mut numbers), Some(7_000_000));
        assert_eq!(pipe.admit(50_000_000, 1_000, &mut numbers), Some(56_000_000));
        // What would wait for half a second gets lost.
        while let Some(arrives) = pipe.admit(50_000_000, 100_000, &mut numbers) {
            assert!(arrives < 1_000_000_000);
        }
    }

    #[test]
    fn packets_get_lost_at_the_given_rate_and_behind_a_cut() {
        let mut lines = Lines::new(&[link(0.0, 0.25, 0.0)]);
        let ends = ("a".to_owned(), "b".to_owned());
        for _ in 0..4_000 {
            lines.send(0, &ends, 1, &[0; 40]);
        }
        let arrived = lines.under_way.len();
        assert!((2_800..3_200).contains(&arrived), "{arrived}");
        lines.obey(NetworkOrder::Cut("b".into()));
        lines.send(0, &ends, 1, &[0; 40]);
        assert_eq!(lines.under_way.len(), arrived);
        lines.obey(NetworkOrder::Link(link(5.0, 0.0, 0.0)));
        lines.send(0, &ends, 1, &[0; 40]);
        assert_eq!(lines.under_way.len(), arrived, "a link that is changed stays cut");
        lines.obey(NetworkOrder::Heal("b".into()));
        lines.send(0, &ends, 1, &[0; 40]);
        assert_eq!(lines.under_way.len(), arrived + 1);
    }

    #[test]
    fn packets_arrive_in_their_order() {
        let mut lines = Lines::new(&[link(2.0, 0.0, 0.0)]);
        for (time, receiver) in [(1, 2), (5, 0), (5, 1)] {
            lines.send(time, &("b".into(), "a".into()), receiver, &[0]);
        }
        let order: Vec<usize> = std::iter::from_fn(|| lines.arrive()).map(|packet| packet.receiver).collect();
        assert_eq!(order, [2, 0, 1]);
        assert_eq!(lines.under_way_bytes, 0);
    }

    #[test]
    fn no_more_is_under_way_than_fits_into_memory() {
        let mut lines = Lines::new(&[link(60_000.0, 0.0, 0.0)]);
        let ends = ("a".to_owned(), "b".to_owned());
        let packet = vec![0; 1 << 20];
        for _ in 0..300 {
            lines.send(0, &ends, 0, &packet);
        }
        assert_eq!(lines.under_way.len(), UNDER_WAY_BYTES_MAX / packet.len());
        lines.arrive();
        lines.send(0, &ends, 0, &packet);
        assert_eq!(lines.under_way.len(), UNDER_WAY_BYTES_MAX / packet.len());
    }

    #[test]
    fn the_receiver_is_read_from_the_packet() {
        let mut packet = [0; 20];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[10, 64, 1, 2]);
        assert_eq!(receiver(&packet), Some(Ipv4Addr::new(10, 64, 1, 2)));
        packet[0] = 0x60;
        assert_eq!((receiver(&packet), receiver(&[])), (None, None));
    }
}
