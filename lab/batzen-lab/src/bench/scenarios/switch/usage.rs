//! Usage of resources by the switch and the simulators while a load runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use super::SwitchProcess;
use crate::bench::BenchError;
use crate::bench::load::affinity::Placement;
use crate::bench::load::procfs::{self, CpuTime};
use crate::bench::load::scrape::Page;
use crate::bench::results::result::{LimitedBy, Sample};

/// Cores that are idle for less than this share of the time are busy.
const IDLE_SHARE: f64 = 0.1;

/// The counters at one moment.
#[derive(Clone, Debug)]
struct Snapshot {
    at: Instant,
    server: CpuTime,
    simulators_ns: u64,
    resident: u64,
    stored: f64,
    /// Bytes that the store's device has written, if the kernel tells.
    device: Option<u64>,
}

/// Takes a sample each second.
pub(super) struct Watcher {
    /// Process, page and data of the switch, if it is the run's own.
    own: Option<(u32, SocketAddr, PathBuf)>,
    first: Option<Snapshot>,
    last: Option<Snapshot>,
    end: Option<Snapshot>,
    seconds: Vec<Sample>,
}

/// The usage in the measured part.
pub(super) struct Usage {
    first: Snapshot,
    end: Snapshot,
    seconds: Vec<Sample>,
}

impl Watcher {
    /// Watches the switch if it is the run's own, and the simulators.
    pub(crate) fn new(switch: Option<&SwitchProcess>) -> Self {
        let own = switch.map(|switch| (switch.pid(), switch.administration, switch.data.clone()));
        Self { own, first: None, last: None, end: None, seconds: Vec::new() }
    }

    fn snapshot(&self) -> Snapshot {
        let simulators_ns = procfs::own_threads_ns("fsps-").values().sum();
        let Some((pid, administration, data)) = &self.own else {
            let server = CpuTime::default();
            return Snapshot {
                at: Instant::now(),
                server,
                simulators_ns,
                resident: 0,
                stored: 0.0,
                device: None,
            };
        };
        Snapshot {
            at: Instant::now(),
            server: CpuTime::of(*pid),
            simulators_ns,
            resident: procfs::resident_bytes(*pid),
            // A switch that does not answer has ended, which is reported elsewhere.
            stored: Page::fetch(*administration)
                .ok()
                .and_then(|page| page.value("batzen_store_written_bytes_total"))
                .unwrap_or(0.0),
            device: procfs::device_written_bytes(data),
        }
    }

    /// Called often during the measured part, first at its beginning and last at its end.
    pub(crate) fn sample(&mut self, is_over: bool) {
        let Some(last) = self.last.clone() else {
            let snapshot = self.snapshot();
            self.first = Some(snapshot.clone());
            self.last = Some(snapshot);
            return;
        };
        if is_over {
            self.end = Some(self.snapshot());
            return;
        }
        if last.at.elapsed().as_millis() < 1_000 {
            return;
        }
        let snapshot = self.snapshot();
        let time = (snapshot.at - last.at).as_secs_f64().max(1e-9);
        let busy = |ns: u64| ns as f64 / 1e9 / time;
        self.seconds.push(Sample {
            server_cores_busy: self
                .own
                .as_ref()
                .map(|_| busy(snapshot.server.since(&last.server).total_ns())),
            client_cores_busy: Some(busy(snapshot.simulators_ns.saturating_sub(last.simulators_ns))),
            ..Sample::default()
        });
        self.last = Some(snapshot);
    }

    pub(crate) fn finish(mut self) -> Result<Usage, BenchError> {
        let end = self.end.take().unwrap_or_else(|| self.snapshot());
        let first =
            self.first.ok_or_else(|| BenchError::SetUp("the load ended before it was measured".into()))?;
        Ok(Usage { first, end, seconds: self.seconds })
    }
}

impl Usage {
    /// CPU time of the switch.
    pub(crate) fn server_cpu(&self) -> CpuTime {
        self.end.server.since(&self.first.server)
    }

    /// CPU time of the simulators.
    pub(crate) fn simulators_ns(&self) -> u64 {
        self.end.simulators_ns.saturating_sub(self.first.simulators_ns)
    }

    /// Bytes that the switch wrote to its store.
    pub(crate) fn stored_bytes(&self) -> f64 {
        self.end.stored - self.first.stored
    }

    /// Bytes that the device of its store wrote, for whatever program. `None` if that is not known: the kernel does not
    /// tell, or the device wrote less than the store had synced, so that something else wrote that.
    pub(crate) fn device_bytes(&self) -> Option<f64> {
        let bytes = self.end.device?.checked_sub(self.first.device?)? as f64;
        (bytes >= self.stored_bytes()).then_some(bytes)
    }

    /// Growth of its resident memory.
    pub(crate) fn resident_growth(&self) -> f64 {
        self.end.resident as f64 - self.first.resident as f64
    }

    /// Returns the samples of each second.
    pub(crate) fn seconds(&self) -> &[Sample] {
        &self.seconds
    }

    /// Returns the bottleneck of the run, as far as it is known: a switch that ran already may be anywhere.
    pub(crate) fn limited_by(&self, placement: &Placement, is_own: bool) -> LimitedBy {
        let seconds = (self.end.at - self.first.at).as_secs_f64().max(1e-9);
        let server = self.server_cpu().total_ns() as f64 / 1e9 / seconds;
        let simulators = self.simulators_ns() as f64 / 1e9 / seconds;
        let busy = |used: f64, cores: usize| used > (1.0 - IDLE_SHARE) * cores.max(1) as f64;
        if !is_own {
            return LimitedBy::of(false, busy(simulators, 1));
        }
        if placement.server.is_empty() {
            // Both share all cores: the one that uses more limits the other.
            return match busy(server + simulators, placement.all.len()) {
                true if server > simulators => LimitedBy::Server,
                true => LimitedBy::Client,
                false => LimitedBy::Neither,
            };
        }
        LimitedBy::of(busy(server, placement.server.len()), busy(simulators, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_device_are_published_only_if_it_wrote_what_was_synced() {
        let at = |stored, device| Snapshot {
            at: Instant::now(),
            server: CpuTime::default(),
            simulators_ns: 0,
            resident: 0,
            stored,
            device,
        };
        let wrote = |first, end| Usage { first: at(100.0, first), end: at(600.0, end), seconds: Vec::new() };
        assert_eq!(wrote(Some(5_000), Some(5_700)).device_bytes(), Some(700.0));
        for (first, end) in [(None, Some(1_000)), (Some(1_000), None), (Some(9), Some(9)), (Some(9), Some(8))]
        {
            assert_eq!(wrote(first, end).device_bytes(), None, "{first:?} {end:?}");
        }
    }
}
