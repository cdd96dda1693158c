//! An agent's view of its host: round trips to the other hosts, and a page with its metrics for Prometheus.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use batzen_metrics::Page;

use super::sample::{ProcessSample, Sample};

/// The pause between two round trips to each host.
const PROBE_PAUSE: Duration = Duration::from_secs(5);
/// Connections of which the quickest counts, since the others have waited for a processor.
const PROBE_ATTEMPTS: usize = 3;
/// Time after which a host counts as out of reach.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
/// Time that a client of the page may take.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);
/// The longest request for the page in bytes.
const REQUEST_BYTES_MAX: usize = 4096;

/// The facts that the threads of an agent share.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Address and port of the agents of the other hosts.
    peers: BTreeMap<String, String>,
    /// The last round trip to each, in milliseconds; those out of reach are missing.
    round_trips_ms: BTreeMap<String, f64>,
    /// Whether the samples have them already.
    is_sampled: bool,
    last: Sample,
}

/// A view of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch(Arc<Mutex<Facts>>);

/// The round trip to a service in milliseconds: the time of a TCP connection, the shortest of several.
///
/// # Errors
/// When it does not accept connections.
pub(super) fn round_trip_ms(authority: &str, attempts: usize, patience: Duration) -> io::Result<f64> {
    let address = authority.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other(format!("{authority} has no address")))?;
    let mut shortest = patience;
    for _ in 0..attempts {
        let begun = Instant::now();
        TcpStream::connect_timeout(&address, patience)?;
        shortest = shortest.min(begun.elapsed());
    }
    Ok(shortest.as_secs_f64() * 1000.0)
}

impl Watch {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the other hosts.
    pub(super) fn follow(&self, peers: BTreeMap<String, String>) {
        self.facts().peers = peers;
    }

    /// The last round trips in milliseconds.
    pub(super) fn round_trips_ms(&self) -> BTreeMap<String, f64> {
        self.facts().round_trips_ms.clone()
    }

    /// Adds round trips that no sample has yet, and keeps the sample for the page.
    pub(super) fn complete(&self, mut sample: Sample) -> Sample {
        let mut facts = self.facts();
        facts.last = sample.clone();
        if !std::mem::replace(&mut facts.is_sampled, true) {
            sample.round_trips_ms.clone_from(&facts.round_trips_ms);
        }
        sample
    }

    /// Measures round trips for ever.
    pub(super) fn probe(&self) {
        loop {
            let peers = self.facts().peers.clone();
            let probe = |(name, authority): (&String, &String)| {
                Some((name.clone(), round_trip_ms(authority, PROBE_ATTEMPTS, PROBE_PATIENCE).ok()?))
            };
            let found = peers.iter().filter_map(probe).collect();
            let mut facts = self.facts();
            facts.is_sampled = peers.is_empty();
            facts.round_trips_ms = found;
            drop(facts);
            // The first ones are wanted soon.
            std::thread::sleep(if peers.is_empty() { CLIENT_PATIENCE } else { PROBE_PAUSE });
        }
    }

    /// Serves the page at any free port of an address, and returns the port.
    ///
    /// # Errors
    /// When the host does not have the address.
    pub(super) fn listen(&self, address: &str) -> io::Result<u16> {
        let listener = TcpListener::bind((address, 0))?;
        let port = listener.local_addr()?.port();
        let watch = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Most connections only measure the round trip.
                let _ = watch.answer(stream);
            }
        });
        Ok(port)
    }

    /// Answers one request, whatever it asks for, with the page.
    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        // For the whole request: one that comes byte by byte would hold up the others.
        let deadline = Instant::now() + CLIENT_PATIENCE;
        stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
        let (mut request, mut length) = ([0; REQUEST_BYTES_MAX], 0);
        while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            stream.set_read_timeout(Some(left))?;
            let count = stream.read(&mut request[length..])?;
            if count == 0 {
                return Ok(());
            }
            length += count;
        }
        let page = page(&self.facts());
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
        write!(stream, "{head}Content-Length: {}\r\n\r\n{page}", page.len())
    }
}

/// The metrics of a host.
fn page(facts: &Facts) -> String {
    let mut page = Page::new();
    let host = facts.last.host;
    page.gauge("batzen_host_cores", "Cores of the host.", host.cores);
    let busy = Duration::from_millis(host.busy_ticks * super::sample::TICK_MS);
    page.seconds("batzen_host_busy_seconds_total", "Time that cores worked, in core seconds.", busy);
    let gauges = [
        ("batzen_host_memory_available_bytes", "Memory for new work.", host.memory_available_bytes),
        ("batzen_host_disk_free_bytes", "Room on the disk of the experiment.", host.disk_free_bytes),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
    let counters = [
        ("batzen_host_disk_written_bytes_total", "Written to that disk.", host.disk_written_bytes),
        ("batzen_host_received_bytes_total", "Received by its interfaces.", host.received_bytes),
        ("batzen_host_sent_bytes_total", "Sent by its interfaces.", host.sent_bytes),
    ];
    for (name, help, value) in counters {
        if let Some(value) = value {
            page.counter(name, help, value);
        }
    }
    let trips = facts.round_trips_ms.iter().map(|(peer, ms)| (peer.as_str(), ms / 1000.0));
    page.gauges("batzen_host_round_trip_seconds", "Round trip to another host.", "peer", trips);
    let of_processes = |of: &dyn Fn(&ProcessSample) -> f64| -> Vec<(&str, f64)> {
        facts.last.processes.iter().map(|(name, process)| (name.as_str(), of(process))).collect()
    };
    let cpu_s = of_processes(&|process| process.cpu_ms as f64 / 1000.0);
    let help = "Processor time of a process with its children.";
    page.counters("batzen_host_process_cpu_seconds_total", help, "process", cpu_s);
    let memory = of_processes(&|process| process.rss_bytes as f64);
    page.gauges("batzen_host_process_resident_bytes", "Its resident memory.", "process", memory);
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::super::sample::HostSample;
    use super::*;

    #[test]
    fn the_page_has_what_the_kernel_tells() {
        let host = HostSample { busy_ticks: 250, cores: 2, received_bytes: Some(7), ..HostSample::default() };
        let process = ProcessSample { cpu_ms: 1500, rss_bytes: 9, ..ProcessSample::default() };
        let watch = Watch::default();
        watch.facts().round_trips_ms.insert("far".to_owned(), 20.5);
        let sample = Sample { host, processes: [("bank".to_owned(), process)].into(), ..Sample::default() };
        assert_eq!(watch.complete(sample.clone()).round_trips_ms["far"], 20.5);
        assert!(watch.complete(sample).round_trips_ms.is_empty(), "each is in one sample");
        let port = watch.listen("127.0.0.1").unwrap();
        // One that only measures the round trip.
        assert!(round_trip_ms(&format!("127.0.0.1:{port}"), 1, PROBE_PATIENCE).unwrap() > 0.0);
        // One that never says what it wants, and one that takes its time.
        let _silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut slow = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let slow = std::thread::spawn(move || {
            for _ in 0..100 {
                std::thread::sleep(CLIENT_PATIENCE / 10);
                if slow.write_all(b"x").is_err() {
                    return true;
                }
            }
            false
        });
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        for line in [
            "HTTP/1.1 200 OK\r",
            "batzen_host_busy_seconds_total 2.5",
            "batzen_host_received_bytes_total 7",
            "batzen_host_round_trip_seconds{peer=\"far\"} 0.0205",
            "batzen_host_process_cpu_seconds_total{process=\"bank\"} 1.5",
        ] {
            assert!(answer.lines().any(|found| found == line.trim_end()), "{line}: {answer}");
        }
        assert!(slow.join().unwrap(), "a request that comes byte by byte is given up");
        assert!(!answer.contains("disk_free"), "what is not known is missing: {answer}");
    }

    #[test]
    fn a_host_out_of_reach_has_no_round_trip() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(round_trip_ms(&closed.to_string(), 1, PROBE_PATIENCE).is_err());
    }
}
