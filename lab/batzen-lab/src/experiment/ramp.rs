//! A ramp: more and more load until the services do not follow, and the reason why they do not. Pure.

use std::fmt::Write as _;

use batzen_cli_support::numbers::{milliseconds, number};
use serde::{Deserialize, Serialize};

use super::topology::Role;

/// The share of the offered operations that must be done for the services to keep up.
const KEEPS_UP: f64 = 0.95;
/// The share of operations that may fail while services count as following.
const ERRORS_MAX: f64 = 0.01;
/// The share of its limit from which a slowed instance counts as saturated. It is lower, since what it does in its part
/// of the time includes waiting.
const SLOWED: f64 = 0.7;
/// The share of its limit from which a stage counts as saturated.
const SATURATED: f64 = 0.85;
/// The share of a lane's time that it may spend with the database before that is what holds it up.
const DATABASE_SHARE: f64 = 0.5;

/// The resources that one instance used during a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// The instance.
    pub instance: String,
    /// Its role.
    pub role: Role,
    /// Its host.
    pub host: String,
    /// Processor time per second, in cores.
    pub cores: f64,
    /// The same of its busiest thread.
    pub busiest_thread: f64,
    /// The share of the time for which it may run.
    pub share: f64,
    /// The milliseconds that each sync of its files takes longer, if its disk may be slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_delay_ms: Option<f64>,
    /// The share of the time in which a sync was held up for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_busy: Option<f64>,
    /// The time of one of its lanes, if it is an exchange or a switch, per second by stage, in seconds: prefetch, execute, commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_s: Option<[f64; 3]>,
    /// The average time of a commit in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_ms: Option<f64>,
    /// The round trip from there to the database in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
}

/// The work of a host during a step. Namespaces of one machine show the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostUsage {
    /// The host.
    pub host: String,
    /// The machine whose cores it has: those of namespaces are this machine's.
    pub machine: String,
    /// Its cores.
    pub cores: usize,
    /// The share of their time in which they worked.
    pub busy: f64,
    /// The share of the time in which some process waited for the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_wait: Option<f64>,
}

/// A step of a ramp.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Operations that were to begin, a second.
    pub offered_per_s: f64,
    /// Operations that were done, a second.
    pub ops_per_s: f64,
    /// Coins withdrawn, paid and changed, a second.
    pub coins_per_s: f64,
    /// The median latency in microseconds.
    pub p50_us: u64,
    /// The 99th percentile of the latency in microseconds.
    pub p99_us: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that were done.
    #[serde(default)]
    pub ops: u64,
    /// The beginning of the measured part in milliseconds since 1970, by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_ms: Option<u64>,
    /// Its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// The resources that each instance used.
    pub usage: Vec<Usage>,
    /// The work of each host.
    pub hosts: Vec<HostUsage>,
}

/// The stage that limits the services, and why it is believed to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bottleneck {
    /// The instance, its disk, `machine`, `disk`, or `unknown`.
    pub stage: String,
    /// The reason, in plain words.
    pub why: String,
}

/// A ramp.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ramp {
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// The largest rate that the services followed; none if they did not follow the first.
    pub knee_ops_per_s: Option<f64>,
    /// The stage that keeps them from more; none if they followed all steps.
    pub bottleneck: Option<Bottleneck>,
}

impl Step {
    /// Whether the services kept up, with latencies up to this.
    #[must_use]
    pub fn keeps_up(&self, p99_max_us: u64) -> bool {
        let is_served = self.ops_per_s >= KEEPS_UP * self.offered_per_s;
        // An operation that fails has no latency, and a service that refuses everything at once is quick.
        let is_right = self.errors as f64 <= ERRORS_MAX * self.ops as f64;
        is_served && is_right && self.p99_us <= p99_max_us
    }

    /// The stage that limits the services in this step.
    #[must_use]
    pub fn bottleneck(&self) -> Bottleneck {
        let found = self
            .paced()
            .or_else(|| self.slow_disk())
            .or_else(|| self.network())
            .or_else(|| self.machine())
            .or_else(|| self.thread());
        found.or_else(|| self.database()).or_else(|| self.disk()).unwrap_or_else(|| Bottleneck {
            stage: "unknown".to_owned(),
            why: "no processor, lane or disk is saturated: look at the latencies by kind, and at limits for one client"
                .to_owned(),
        })
    }

    /// The cores of a host.
    fn cores(&self, host: &str) -> f64 {
        let found = self.hosts.iter().find(|found| found.host == host);
        found.map_or(1.0, |found| found.cores.max(1) as f64)
    }

    /// An instance that has used all the time that it may run.
    fn paced(&self) -> Option<Bottleneck> {
        let is_busy =
            |host: &str| self.hosts.iter().any(|found| found.host == host && found.busy >= SATURATED);
        let load = |usage: &Usage| {
            let of_thread = usage.busiest_thread / usage.share;
            // Where others want the cores too, it may get no more than one while it runs.
            let cores = if is_busy(&usage.host) { 1.0 } else { self.cores(&usage.host) };
            of_thread.max(usage.cores / (usage.share * cores))
        };
        let paced = self.usage.iter().filter(|usage| usage.share < 1.0);
        let most = paced.max_by(|one, two| load(one).total_cmp(&load(two)))?;
        (load(most) >= SLOWED).then(|| Bottleneck {
            stage: most.instance.clone(),
            why: format!(
                "it may run for {} % of the time only, and uses {} of a core of it",
                number(most.share * 100.0),
                number(most.cores)
            ),
        })
    }

    /// An instance whose disk was made slow, and holds up a sync most of the time.
    fn slow_disk(&self) -> Option<Bottleneck> {
        let slowed = self.usage.iter().filter_map(|usage| {
            let delay_ms = usage.disk_delay_ms.filter(|delay_ms| *delay_ms > 0.0)?;
            Some((usage, delay_ms, usage.disk_busy?))
        });
        let (most, delay_ms, busy) = slowed.max_by(|one, two| one.2.total_cmp(&two.2))?;
        (busy >= SLOWED).then(|| Bottleneck {
            stage: format!("disk of {}", most.instance),
            why: format!(
                "each of its syncs takes {} ms longer, and one is under way {} % of the time",
                number(delay_ms),
                number(busy * 100.0)
            ),
        })
    }

    /// A host whose cores all work, and the instance that uses most of them.
    fn machine(&self) -> Option<Bottleneck> {
        let busiest = self.hosts.iter().max_by(|one, two| one.busy.total_cmp(&two.busy))?;
        if busiest.busy < SATURATED {
            return None;
        }
        let there = |usage: &&Usage| {
            self.hosts.iter().any(|host| host.host == usage.host && host.machine == busiest.machine)
        };
        let mut by_use: Vec<&Usage> = self.usage.iter().filter(there).collect();
        by_use.sort_by(|one, two| two.cores.total_cmp(&one.cores));
        let most = by_use.first()?;
        let shares: Vec<String> = by_use
            .iter()
            .take(4)
            .filter(|usage| usage.cores > 0.02)
            .map(|usage| format!("{} {}", usage.instance, number(usage.cores)))
            .collect();
        let advice = if most.role == Role::Load {
            "; the generator itself needs most: give it a host of its own"
        } else {
            ""
        };
        Some(Bottleneck {
            stage: if most.role == Role::Load { "generator".to_owned() } else { "machine".to_owned() },
            why: format!(
                "all {} cores of {} work {} % of the time (cores: {}){advice}",
                busiest.cores,
                busiest.machine,
                number(busiest.busy * 100.0),
                shares.join(", ")
            ),
        })
    }

    /// A thread that works all the time while other cores are idle.
    fn thread(&self) -> Option<Bottleneck> {
        let most = self.usage.iter().max_by(|one, two| one.busiest_thread.total_cmp(&two.busiest_thread))?;
        (most.busiest_thread >= SATURATED).then(|| Bottleneck {
            stage: most.instance.clone(),
            why: format!(
                "one of its threads works {} % of the time while other cores are idle",
                number(most.busiest_thread * 100.0)
            ),
        })
    }

    /// The exchange whose lanes wait longest for the database, if they wait most of the time.
    fn waiting(&self) -> Option<&Usage> {
        let waits = |usage: &Usage| {
            let [prefetch, execute, commit] = usage.lane_s?;
            let all = prefetch + execute + commit;
            (all >= SATURATED && prefetch + commit >= DATABASE_SHARE * all).then_some(all)
        };
        let waiting = self.usage.iter().filter(|usage| waits(usage).is_some());
        waiting.max_by(|one, two| waits(one).unwrap_or_default().total_cmp(&waits(two).unwrap_or_default()))
    }

    /// The way to the database, if most of a commit's time is spent on it.
    fn network(&self) -> Option<Bottleneck> {
        let most = self.waiting()?;
        let (rtt_ms, commit_ms) = (most.rtt_ms?, most.commit_ms?);
        (rtt_ms >= DATABASE_SHARE * commit_ms).then(|| Bottleneck {
            stage: "network".to_owned(),
            why: format!(
                "the lane of {} waits for the database all the time: a commit takes {} ms, and {} ms of it is the round trip",
                most.instance,
                number(commit_ms),
                number(rtt_ms)
            ),
        })
    }

    /// An exchange whose lanes wait for the database.
    fn database(&self) -> Option<Bottleneck> {
        let most = self.waiting()?;
        let commit_ms = most.commit_ms.map_or_else(|| "?".to_owned(), number);
        // A switch has a store of its own.
        let is_its = |usage: &&Usage| {
            matches!(usage.role, Role::Postgres | Role::Citus) && most.role == Role::Exchange
        };
        let nodes = self.usage.iter().filter(is_its);
        let Some(database) = nodes.max_by(|one, two| one.cores.total_cmp(&two.cores)) else {
            return Some(Bottleneck {
                stage: "disk".to_owned(),
                why: format!(
                    "the lane of {} works all the time, and a commit to its store takes {commit_ms} ms",
                    most.instance
                ),
            });
        };
        let [prefetch, _, commit] = most.lane_s?;
        Some(Bottleneck {
            stage: "database".to_owned(),
            why: format!(
                "the lane of {} spends {} % of the time waiting for the database (a commit takes {commit_ms} ms), where {} \
                 uses {} of a core: its disk, or its locks, are slow",
                most.instance,
                number((prefetch + commit) * 100.0),
                database.instance,
                number(database.cores)
            ),
        })
    }

    fn disk(&self) -> Option<Bottleneck> {
        let host = self.hosts.iter().find(|host| host.disk_wait.is_some_and(|share| share >= 0.5))?;
        Some(Bottleneck {
            stage: "disk".to_owned(),
            why: format!(
                "on {} some process waits for the disk {} % of the time",
                host.host,
                number(host.disk_wait? * 100.0)
            ),
        })
    }
}

impl Ramp {
    /// Finds the knee of the curve.
    #[must_use]
    pub fn of(steps: Vec<Step>, p99_max_us: u64) -> Self {
        let first_behind = steps.iter().position(|step| !step.keeps_up(p99_max_us));
        let followed = &steps[..first_behind.unwrap_or(steps.len())];
        let knee_ops_per_s = followed.iter().map(|step| step.ops_per_s).max_by(f64::total_cmp);
        let bottleneck = first_behind.map(|index| steps[index].bottleneck());
        Self { knee_ops_per_s, bottleneck, steps }
    }

    /// The step at the knee.
    #[must_use]
    pub fn knee(&self) -> Option<&Step> {
        self.steps.iter().find(|step| Some(step.ops_per_s) == self.knee_ops_per_s)
    }

    /// The curve as a table, with the verdict.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}\n",
            "offered/s", "done/s", "coins/s", "p50 ms", "p99 ms", "errors"
        );
        for step in &self.steps {
            let _ = writeln!(
                text,
                "{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}",
                number(step.offered_per_s),
                number(step.ops_per_s),
                number(step.coins_per_s),
                milliseconds(step.p50_us as f64),
                milliseconds(step.p99_us as f64),
                step.errors
            );
        }
        match (self.knee_ops_per_s, &self.bottleneck) {
            (Some(knee), Some(found)) => {
                let _ = writeln!(
                    text,
                    "knee: {} operations a second\nbottleneck: {}: {}",
                    number(knee),
                    found.stage,
                    found.why
                );
            }
            (None, Some(found)) => {
                let _ = writeln!(
                    text,
                    "the services did not keep up with the first step\nbottleneck: {}: {}",
                    found.stage, found.why
                );
            }
            (Some(knee), None) => {
                let _ = writeln!(text, "no knee up to {} operations a second", number(knee));
            }
            (None, None) => text.push_str("nothing was measured\n"),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(instance: &str, role: Role, cores: f64, busiest_thread: f64) -> Usage {
        Usage {
            instance: instance.into(),
            role,
            host: "core".into(),
            cores,
            busiest_thread,
            share: 1.0,
            disk_delay_ms: None,
            disk_busy: None,
            lane_s: None,
            commit_ms: None,
            rtt_ms: None,
        }
    }

    fn step(offered: f64, done: f64) -> Step {
        let host =
            HostUsage { host: "core".into(), machine: "this".into(), cores: 4, busy: 0.3, disk_wait: None };
        Step {
            offered_per_s: offered,
            ops_per_s: done,
            p50_us: 2_000,
            p99_us: 20_000,
            ops: 100,
            hosts: vec![host],
            usage: vec![usage("exchange-1", Role::Exchange, 0.5, 0.2), usage("load", Role::Load, 0.4, 0.2)],
            ..Step::default()
        }
    }

    #[test]
    fn the_knee_is_the_last_rate_that_was_followed() {
        let ramp = Ramp::of(vec![step(10.0, 10.0), step(20.0, 19.9), step(40.0, 25.0)], 1_000_000);
        assert_eq!(ramp.knee_ops_per_s, Some(19.9));
        assert_eq!(ramp.knee(), Some(&ramp.steps[1]));
        assert_eq!(ramp.bottleneck.as_ref().unwrap().stage, "unknown");
        assert!(ramp.table().contains("knee: 19.9"), "{}", ramp.table());
        let never = Ramp::of(vec![step(10.0, 10.0)], 1_000_000);
        assert_eq!((never.knee_ops_per_s, never.bottleneck), (Some(10.0), None));
        let wrong = Step { errors: 50, ..step(10.0, 10.0) };
        assert!(!wrong.keeps_up(1_000_000), "half of the operations fail");
        let late = Ramp::of(vec![step(10.0, 10.0)], 1_000);
        assert_eq!(late.knee_ops_per_s, None);
        assert!(late.bottleneck.is_some());
    }

    #[test]
    fn the_saturated_stage_is_named() {
        let of = |change: &dyn Fn(&mut Step)| {
            let mut step = step(40.0, 20.0);
            change(&mut step);
            step.bottleneck()
        };
        assert_eq!(of(&|step| step.usage[0].busiest_thread = 0.97).stage, "exchange-1");
        let paced = of(&|step| {
            step.usage.push(Usage { share: 0.1, ..usage("postgres", Role::Postgres, 0.1, 0.09) });
        });
        assert_eq!(paced.stage, "postgres");
        assert!(paced.why.contains("10.0 % of the time"), "{}", paced.why);
        let slow_disk = |busy| {
            of(&|step: &mut Step| {
                step.usage[0].lane_s = Some([0.05, 0.02, 0.9]);
                (step.usage[0].disk_delay_ms, step.usage[0].disk_busy) = (Some(20.0), Some(busy));
            })
        };
        assert_eq!(slow_disk(0.9).stage, "disk of exchange-1");
        assert!(slow_disk(0.9).why.contains("20.0 ms longer"), "{}", slow_disk(0.9).why);
        assert_eq!(slow_disk(0.3).stage, "disk", "what else is slow about it");
        let machine = of(&|step| step.hosts[0].busy = 0.99);
        assert_eq!(machine.stage, "machine");
        let generator = of(&|step| {
            step.hosts[0].busy = 0.99;
            step.usage[1].cores = 3.0;
        });
        assert_eq!(generator.stage, "generator");
        let far = of(&|step| {
            step.usage[0].lane_s = Some([0.45, 0.02, 0.5]);
            step.usage[0].commit_ms = Some(41.0);
            step.usage.push(usage("postgres", Role::Postgres, 0.1, 0.1));
        });
        assert_eq!(far.stage, "database");
        assert!(far.why.contains("41.0 ms"), "{}", far.why);
        let cluster = of(&|step| {
            step.usage[0].lane_s = Some([0.45, 0.02, 0.5]);
            step.usage.extend([1, 2, 3].map(|number| {
                let cores = if number == 2 { 0.4 } else { 0.1 };
                usage(&format!("citus-{number}"), Role::Citus, cores, 0.1)
            }));
        });
        assert_eq!(cluster.stage, "database");
        assert!(cluster.why.contains("citus-2 uses 0.4"), "the busiest node is named: {}", cluster.why);
        let own = of(&|step| {
            step.usage[0].lane_s = Some([0.05, 0.02, 0.9]);
            step.usage[0].commit_ms = Some(41.0);
        });
        assert_eq!(own.stage, "disk", "an embedded store is no database");
        // The cores of one machine are not short because of what runs on another.
        let elsewhere = of(&|step| {
            step.hosts.push(HostUsage {
                host: "gen".into(),
                machine: "gen".into(),
                cores: 2,
                busy: 1.0,
                disk_wait: None,
            });
            step.usage[1].host = "gen".into();
            step.usage[0].cores = 3.0;
        });
        assert_eq!(elsewhere.stage, "generator", "{}", elsewhere.why);
        // A busy machine hides no long way.
        let farther = of(&|step| {
            step.hosts[0].busy = 0.99;
            step.usage[0].lane_s = Some([0.45, 0.02, 0.5]);
            (step.usage[0].commit_ms, step.usage[0].rtt_ms) = (Some(25.0), Some(20.4));
        });
        assert_eq!(farther.stage, "network");
        assert_eq!(of(&|step| step.hosts[0].disk_wait = Some(0.8)).stage, "disk");
    }
}
