//! The output of `batzen-lab bench scale --json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::law::Law;
use super::projection::{Ceiling, Projection, Stage};
use crate::bench::results::machine::Machine;
use crate::bench::results::result::LimitedBy;
use crate::bench::scenarios::lanes::LanesRow;

/// One run of the exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScaleRun {
    pub(crate) round: u32,
    /// Cores of the server.
    pub(crate) cores: u32,
    /// Whether the load generator used these cores, too.
    pub(crate) is_shared: bool,
    /// Coins withdrawn and deposited per second.
    pub(crate) coins_per_s: f64,
    /// The bottleneck.
    pub(crate) limited_by: LimitedBy,
    /// Processor time of the server for a coin, in microseconds.
    pub(crate) cpu_us_per_coin: f64,
    /// The same by stage.
    pub(crate) cpu_us_per_coin_by_stage: BTreeMap<String, f64>,
    /// The part of it in which only one thread can run, in microseconds.
    pub(crate) serial_cpu_us_per_coin: f64,
    /// Coins that became durable with one write.
    pub(crate) coins_per_frame: f64,
    /// Share of the server's cores that other programs used; the load generator is one of them if it shares the cores.
    pub(crate) foreign_share: f64,
    /// Share of the server's cores that a hypervisor took.
    pub(crate) stolen_share: f64,
}

/// Where the rates of the fit come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Basis {
    /// Coins per second as measured.
    Clock,
    /// Cores ÷ processor time of a coin: what the server would do if it had the cores to itself and was always busy.
    Cpu,
}

/// The result for a number of coins in a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScaleKind {
    pub(crate) coins_per_request: u32,
    /// Where the rates of the fit come from.
    pub(crate) basis: Basis,
    pub(crate) runs: Vec<ScaleRun>,
    /// The lanes alone, the middle of the rounds.
    pub(crate) lanes: Vec<LanesRow>,
    /// Number of constants of the law that the runs determine; the others are zero.
    pub(crate) identified: usize,
    /// The law of all rounds.
    pub(crate) law: Law,
    /// Its mean relative deviation from the rates.
    pub(crate) law_error: f64,
    /// The law of each round: their spread is the error of the constants.
    pub(crate) round_laws: Vec<Law>,
    /// The serial part as a share of a coin's processor time: the second estimate of σ. Projections take the larger.
    pub(crate) serial_share: f64,
    /// The stages, on the largest number of cores.
    pub(crate) stages: Vec<Stage>,
    /// The rates at which stages saturate on the largest projected machine.
    pub(crate) ceilings: Vec<Ceiling>,
    /// Larger machines.
    pub(crate) projections: Vec<Projection>,
    pub(crate) goals: Vec<Goal>,
}

/// A goal, and whether it is projected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Goal {
    /// Coins per second.
    pub(crate) coins_per_s: f64,
    /// The projection for the cores of the goal; `None` if the goal is about stages.
    pub(crate) projection: Option<Projection>,
    /// The lowest ceiling of a stage, if the goal is about stages.
    pub(crate) ceiling: Option<Ceiling>,
    /// Whether the projection reaches the goal.
    pub(crate) is_reached: bool,
    /// Number of cores that reach it: by the law, by the lowest and by the highest figure.
    pub(crate) cores_needed: [Option<u32>; 3],
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScaleResult {
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// The version of the program.
    pub(crate) version: String,
    /// The commit it was built from, or `unknown`.
    pub(crate) commit: String,
    /// The cipher of the coins.
    pub(crate) cipher: String,
    /// Runs of each kind.
    pub(crate) rounds: u32,
    /// Connections for each core.
    pub(crate) clients_per_core: u32,
    /// A result for each number of coins in a request.
    pub(crate) kinds: Vec<ScaleKind>,
    /// Remarks that a reader should know.
    pub(crate) remarks: Vec<String>,
}
