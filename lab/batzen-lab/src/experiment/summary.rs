//! The summary of a kept experiment: the last load that ran by itself, as one file of figures and one line a minute. It is
//! small enough to be kept beside the source, and what documents publish is made from it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::page::Kept;
use super::state::Experiment;
use super::tally::{Second, Sum};
use super::topology::Role;
use crate::bench::results::machine::Machine;
use crate::bench::results::result::utc;

/// The file with a line for each minute.
pub(super) const BY_MINUTE: &str = "by-minute.csv";
/// Operations that took longer count as slow.
const SLOW_US: u64 = 1_000_000;

/// A kept experiment in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The name of its topology.
    pub(super) name: String,
    /// The version of Batzen that ran.
    pub(super) version: String,
    /// The commit that ran.
    pub(super) commit: String,
    /// The machines, by the hosts that share them.
    pub(super) machines: BTreeMap<String, Machine>,
    /// The moment when the load began, as RFC 3339 in UTC.
    pub(super) started: String,
    /// The load as its event tells it: wallets and rate.
    pub(super) load: String,
    /// The largest rate with which the services kept up in the ramp.
    pub(super) knee_ops_per_s: Option<f64>,
    /// The length of the load in seconds.
    pub(super) seconds: u64,
    /// Operations that were to begin.
    pub(super) offered: u64,
    /// Operations that succeeded.
    pub(super) ops: u64,
    /// Coins that they moved.
    pub(super) coins: u64,
    /// Operations by kind, also those that were done for others.
    pub(super) by_kind: BTreeMap<String, u64>,
    /// Failed operations by reason.
    pub(super) errors: BTreeMap<String, u64>,
    /// The median of the latency in microseconds.
    pub(super) p50_us: u64,
    /// The 99th percentile.
    pub(super) p99_us: u64,
    /// The largest latency.
    pub(super) max_us: u64,
    /// The share of operations that took longer than a second, or failed.
    pub(super) slow_share: f64,
    /// Whether the books balanced; none if nobody looked.
    pub(super) conserved: Option<bool>,
    /// The findings of the auditor; none if there was no auditor.
    pub(super) findings: Option<u64>,
}

/// The time of the event with which the last load began, and its text; without another, that is the last step of a ramp.
fn last_load(events: &[Value]) -> Option<(u64, String)> {
    let of_load =
        |event: &&Value| event["event"] == "load" && !event["of"].as_str().unwrap_or("0 ").starts_with("0 ");
    let event = events.iter().rfind(of_load)?;
    Some((event["time_ms"].as_u64()?, event["of"].as_str()?.to_owned()))
}

/// The seconds in which the load ran from a moment on, with their time in seconds.
fn seconds_since(kept: &Kept, began_ms: u64) -> BTreeMap<u64, Vec<&Second>> {
    let begin_s = kept.at(began_ms);
    let at_work = |all: &[Second]| all.iter().any(|second| second.wallets > 0);
    let since = kept.seconds.iter().filter(|(time, all)| **time as f64 >= begin_s && at_work(all));
    since.map(|(time, all)| (*time, all.iter().collect())).collect()
}

impl Summary {
    /// The summary of the last load; none if no load was kept.
    pub(super) fn of(experiment: &Experiment, kept: &Kept) -> Option<Self> {
        let (began_ms, load) = last_load(&kept.events)?;
        let seconds = seconds_since(kept, began_ms);
        let sum = Sum::of(seconds.values().flatten().copied());
        let latency = sum.latency();
        let failed: u64 = sum.errors.values().sum();
        let slow = latency.len() - latency.count_between(0, SLOW_US);
        let checked = |name: &str| kept.check.as_ref().map_or(&Value::Null, |check| &check[name]);
        Some(Self {
            name: experiment.topology.name.clone(),
            version: experiment.state.version.clone(),
            commit: experiment.state.commit.clone(),
            machines: experiment.state.machines.clone(),
            started: utc(began_ms / 1000),
            load,
            knee_ops_per_s: kept.ramp.as_ref().and_then(|ramp| ramp.knee_ops_per_s),
            seconds: seconds.len() as u64,
            offered: sum.offered,
            ops: sum.ops,
            coins: sum.coins,
            by_kind: sum.by_kind.clone(),
            p50_us: latency.value_at_quantile(0.5),
            p99_us: latency.value_at_quantile(0.99),
            max_us: latency.max(),
            slow_share: (slow + failed) as f64 / (sum.ops + failed).max(1) as f64,
            errors: sum.errors,
            conserved: checked("conserved").as_bool(),
            findings: checked("findings").as_u64(),
        })
    }
}

/// Processor time and memory of a role in a minute.
#[derive(Clone, Copy, Default)]
struct MinuteUse {
    cpu_ms: u64,
    rss_bytes: u64,
}

/// The processor time of each role in each minute, and the most memory of its processes together.
fn used_by_role(experiment: &Experiment, kept: &Kept, first_s: u64) -> BTreeMap<(u64, Role), MinuteUse> {
    let roles = experiment.roles_of_processes();
    let mut found: BTreeMap<(u64, Role), MinuteUse> = BTreeMap::new();
    for pair in kept.samples.values().flat_map(|samples| samples.windows(2)) {
        let at = kept.at(pair[1].time_ms);
        if at < first_s as f64 {
            continue;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of an experiment"
        )]
        let minute = (at as u64 - first_s) / 60;
        let mut rss_bytes: BTreeMap<Role, u64> = BTreeMap::new();
        for (name, after) in &pair[1].processes {
            let Some(role) = roles.get(name) else { continue };
            *rss_bytes.entry(*role).or_default() += after.rss_bytes;
            if let Some(before) = pair[0].processes.get(name) {
                let used = found.entry((minute, *role)).or_default();
                used.cpu_ms += after.cpu_ms.saturating_sub(before.cpu_ms);
            }
        }
        for (role, bytes) in rss_bytes {
            let used = found.entry((minute, role)).or_default();
            used.rss_bytes = used.rss_bytes.max(bytes);
        }
    }
    found
}

/// A line for each minute of the last load: operations, latencies, and what each role used. None if no load was kept.
pub(super) fn by_minute(experiment: &Experiment, kept: &Kept) -> Option<String> {
    let (began_ms, _) = last_load(&kept.events)?;
    let seconds = seconds_since(kept, began_ms);
    let first_s = *seconds.keys().next()?;
    let used = used_by_role(experiment, kept, first_s);
    let roles: std::collections::BTreeSet<Role> = used.keys().map(|(_, role)| *role).collect();
    let mut minutes: BTreeMap<u64, Vec<&Second>> = BTreeMap::new();
    for (time, all) in seconds {
        minutes.entry((time - first_s) / 60).or_default().extend(all);
    }
    let mut text = "minute,offered,ops,errors,p50_us,p99_us,max_us".to_owned();
    for role in &roles {
        let _ = write!(text, ",{role}_cpu_ms,{role}_rss_bytes");
    }
    text.push('\n');
    for (minute, all) in minutes {
        let sum = Sum::of(all);
        let latency = sum.latency();
        let _ = write!(
            text,
            "{},{},{},{},{},{},{}",
            minute + 1,
            sum.offered,
            sum.ops,
            sum.errors.values().sum::<u64>(),
            latency.value_at_quantile(0.5),
            latency.value_at_quantile(0.99),
            latency.max()
        );
        for role in &roles {
            let used = used.get(&(minute, *role)).copied().unwrap_or_default();
            let _ = write!(text, ",{},{}", used.cpu_ms, used.rss_bytes);
        }
        text.push('\n');
    }
    Some(text)
}
