//! Costs of operations, from the results that are kept with the program or from others.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::StoreChoice;
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::results::machine::Machine;
use crate::bench::results::result::{RESULT_FILE, Run, RunResult};
use crate::bench::scenarios::lanes::LanesResult;

/// The stages of a server, that is the roles of its threads. `database` is PostgreSQL.
pub(crate) const STAGES: [&str; 6] = ["http", "cpu", "lane", "store", "database", "other"];

/// Processor time by stage, in microseconds.
pub(crate) type Stages = BTreeMap<String, f64>;

/// The cost of a coin as a function of how many coins travel in one request: `per_coin + per_request ÷ coins`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Batched {
    /// The part that every coin has, by stage.
    pub(crate) per_coin_us: Stages,
    /// The part that every request has, by stage.
    pub(crate) per_request_us: Stages,
    /// Bytes written to disk for a coin.
    pub(crate) disk_bytes: f64,
}

/// The cost of one operation of another kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Single {
    pub(crate) us: Stages,
    /// Bytes written to disk.
    pub(crate) disk_bytes: f64,
}

/// The costs of operations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Costs {
    /// The machine of the results; of the deposits, if there are several.
    pub(crate) machine: Machine,
    /// The results that were used: directory, and commit.
    pub(crate) results: BTreeMap<String, String>,
    /// The kept results that were used, although other results were named.
    pub(crate) missing: Vec<String>,
    /// The share of the lanes' time in which only one lane of a store can run.
    pub(crate) serial_share: f64,
    /// Memory of the embedded store's indexes for an older row, in bytes.
    pub(crate) index_bytes_per_row: f64,
    /// A coin withdrawn.
    pub(crate) withdraw: Batched,
    /// A coin deposited.
    pub(crate) deposit: Batched,
    /// Change: a coin melted into three fresh ones.
    pub(crate) refresh: Single,
    /// A deposit aggregated.
    pub(crate) aggregate: Single,
    /// A transfer sent.
    pub(crate) transfer: Single,
    /// A credit imported from the bank.
    pub(crate) credit: Single,
    /// The change of the database's times if Citus distributes it.
    pub(crate) citus: Option<CitusCosts>,
    /// Factor by which this machine is slower than that one, if it was measured.
    pub(crate) slowdown: Option<Slowdown>,
}

/// The processor time that Citus adds to that of a database, by the load that was measured on it and on one
/// server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CitusCosts {
    /// Payments of one coin, which are each in one shard.
    pub(crate) deposit: OnCitus,
    /// Withdrawals, payments of several coins, and change.
    pub(crate) mixed: OnCitus,
}

/// A load on Citus, compared with one server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct OnCitus {
    /// Processor time of all nodes, divided by that of one server.
    pub(crate) factor: f64,
    /// The coordinator's share of the nodes' time.
    pub(crate) coordinator_share: f64,
}

/// Processor times of this machine, divided by those of the kept results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Slowdown {
    pub(crate) cryptography: f64,
    /// Of everything else.
    pub(crate) other: f64,
}

macro_rules! kept {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../../docs/results/", $name, "/result.json")))
    };
}

type Kept = (&'static str, &'static str);

/// Lanes are measured without a server, so their result has a form of its own.
const LANES: Kept = ("lanes", include_str!("../../../../../docs/results/lanes/lanes.json"));
const LANES_FILE: &str = "lanes.json";

const WITHDRAW: Kept = kept!("withdraw");
const BATCH_WITHDRAW: Kept = kept!("batch-withdraw");
const DEPOSIT: Kept = kept!("deposit");
const BATCH_DEPOSIT: Kept = kept!("batch-deposit");
const REFRESH: Kept = kept!("refresh");
const AGGREGATOR: Kept = kept!("aggregator");
const TRANSFER: Kept = kept!("transfer");
const WIREWATCH: Kept = kept!("wirewatch");
const POSTGRES_WITHDRAW: Kept = kept!("postgres-withdraw");
const POSTGRES_DEPOSIT: Kept = kept!("postgres-deposit");
const POSTGRES_REFRESH: Kept = kept!("postgres-refresh");
const POSTGRES_AGGREGATOR: Kept = kept!("postgres-aggregator");
const POSTGRES_TRANSFER: Kept = kept!("postgres-transfer");
const POSTGRES_WIREWATCH: Kept = kept!("postgres-wirewatch");

/// A load on Citus and on one server of the same machine, as kept.
#[derive(Deserialize)]
struct KeptOnCitus {
    database_us_on_one_server: f64,
    database_us_on_citus: f64,
    coordinator_share: f64,
}

/// The kept measurements on Citus, and their source.
#[derive(Deserialize)]
struct KeptCitus {
    source: String,
    deposit: KeptOnCitus,
    mixed: KeptOnCitus,
}

/// Replace its figures by those of newer runs: `database_cpu_us_per_op` and `coordinator_cpu_share` of their results.
const CITUS: &str = include_str!("../../../../../docs/results/citus/citus.json");

/// The memory of indexes, from a store with many coins.
const HISTORY: &str = include_str!("../../../../../docs/results/history/history.json");

fn index_bytes_per_row() -> f64 {
    let history: serde_json::Value = serde_json::from_str(HISTORY).expect("a test reads all kept results");
    history["index_bytes_per_row"].as_f64().expect("a test reads all kept results")
}

/// Reads results, those below a directory before kept ones, and notes which.
#[derive(Default)]
struct Reader<'a> {
    directory: Option<&'a Path>,
    results: BTreeMap<String, String>,
    missing: Vec<String>,
}

impl Reader<'_> {
    /// The file of a result, if the directory has it.
    fn find(&mut self, name: &str, file: &str) -> Option<std::path::PathBuf> {
        let directory = self.directory?;
        let found = Some(directory.join(name)).filter(|directory| directory.join(file).exists());
        if found.is_none() {
            self.missing.push(name.to_owned());
        }
        found
    }

    fn read(&mut self, (name, text): Kept) -> Result<RunResult> {
        let result = match self.find(name, RESULT_FILE) {
            Some(directory) => Run::read(&directory)?.result,
            None => serde_json::from_str(text).expect("a test reads all kept results"),
        };
        self.results.insert(name.to_owned(), result.commit.clone());
        Ok(result)
    }

    /// The share of the lanes' time that is serial: the highest of the rows with the most lanes, in which commits gather.
    fn serial_share(&mut self) -> Result<f64> {
        let (name, text) = LANES;
        let result: LanesResult = match self.find(name, LANES_FILE) {
            Some(directory) => {
                let path = directory.join(LANES_FILE);
                let text = std::fs::read_to_string(&path).map_err(BenchError::io(&path))?;
                serde_json::from_str(&text)
                    .map_err(|error| BenchError::Usage(format!("{}: {error}", path.display())))?
            }
            None => serde_json::from_str(text).expect("a test reads all kept results"),
        };
        self.results.insert(name.to_owned(), result.commit.clone());
        let share = |row: &crate::bench::scenarios::lanes::LanesRow| {
            row.serial_cpu_us_per_coin / row.lane_cpu_us_per_coin
        };
        let lanes = result.rows.iter().map(|row| row.lanes).max().unwrap_or(1);
        let rows = result.rows.iter().filter(|row| row.lanes == lanes);
        let shares = rows.map(share).filter(|share| share.is_finite());
        Ok(shares.fold(0.0, f64::max).min(1.0))
    }

    fn single(&mut self, kept: Kept) -> Result<Single> {
        let result = self.read(kept)?;
        Ok(Single { us: stages(&result), disk_bytes: disk_bytes(&result) })
    }

    /// From a run with one coin a request and one with ten.
    fn batched(&mut self, one: Kept, ten: Kept) -> Result<Batched> {
        let (one, ten) = (self.read(one)?, self.read(ten)?);
        let (of_one, of_ten) = (stages(&one), stages(&ten));
        let mut batched = Batched { disk_bytes: disk_bytes(&ten), ..Batched::default() };
        for stage in STAGES {
            let of = |stages: &Stages| stages.get(stage).copied().unwrap_or(0.0);
            let per_request = ((of(&of_one) - of(&of_ten)) / 0.9).max(0.0);
            batched.per_request_us.insert(stage.to_owned(), per_request);
            batched.per_coin_us.insert(stage.to_owned(), of(&of_one) - per_request);
        }
        Ok(batched)
    }

    /// From a run on Citus and one on one server, or from what is kept.
    fn on_citus(&mut self, [citus, plain]: [&str; 2], kept: &KeptOnCitus, source: &str) -> Result<OnCitus> {
        let missing = self.missing.len();
        let found = (self.find(citus, RESULT_FILE), self.find(plain, RESULT_FILE));
        let (Some(on_citus), Some(on_one)) = found else {
            // One of the two says nothing without the other.
            self.missing.truncate(missing);
            for name in [citus, plain] {
                self.results.insert(name.to_owned(), source.to_owned());
                if self.directory.is_some() {
                    self.missing.push(name.to_owned());
                }
            }
            return Ok(OnCitus {
                factor: kept.database_us_on_citus / kept.database_us_on_one_server,
                coordinator_share: kept.coordinator_share,
            });
        };
        let mut figure = |directory: &Path, name: &str, figure: &str| {
            let result = Run::read(directory)?.result;
            self.results.insert(name.to_owned(), result.commit.clone());
            let found = result.extra.get(figure).copied().filter(|found| *found > 0.0);
            found.ok_or_else(|| BenchError::Usage(format!("{}: there is no {figure}", directory.display())))
        };
        let us = "database_cpu_us_per_op";
        Ok(OnCitus {
            factor: figure(&on_citus, citus, us)? / figure(&on_one, plain, us)?,
            coordinator_share: figure(&on_citus, citus, "coordinator_cpu_share")?,
        })
    }

    fn citus(&mut self) -> Result<CitusCosts> {
        let kept: KeptCitus = serde_json::from_str(CITUS).expect("a test reads all kept results");
        Ok(CitusCosts {
            deposit: self.on_citus(["citus-deposit", "citus-deposit-plain"], &kept.deposit, &kept.source)?,
            mixed: self.on_citus(["citus-mixed", "citus-mixed-plain"], &kept.mixed, &kept.source)?,
        })
    }

    /// From a run with one coin a request; nothing is saved by more coins in a request.
    fn unbatched(&mut self, kept: Kept) -> Result<Batched> {
        let Single { us, disk_bytes } = self.single(kept)?;
        Ok(Batched { per_coin_us: us, per_request_us: Stages::new(), disk_bytes })
    }
}

/// Processor time by stage. If a result has no stages, all of it is `other`.
fn stages(result: &RunResult) -> Stages {
    let mut stages = result.cpu_us_per_op_by_stage.clone();
    if stages.is_empty() {
        stages.insert("other".to_owned(), result.cpu_us_per_op.unwrap_or(0.0));
    }
    if let Some(database) = result.extra.get("database_cpu_us_per_op") {
        // Then the total contains it.
        stages.insert("database".to_owned(), *database);
    }
    stages
}

/// Bytes on disk for an operation.
fn disk_bytes(result: &RunResult) -> f64 {
    let disk = result.extra.get("disk_growth_bytes_per_op").copied();
    let disk = disk.or(result.bytes_per_op.map(|bytes| bytes.disk)).unwrap_or(0.0);
    disk.max(0.0)
}

impl Costs {
    /// The costs of the kept results.
    pub(crate) fn kept(store: StoreChoice) -> Self {
        Self::read(store, None).expect("a test reads all kept results")
    }

    /// The costs of the results below a directory; what it does not have is from the kept results.
    pub(crate) fn of_results(store: StoreChoice, directory: &Path) -> Result<Self> {
        let costs = Self::read(store, Some(directory))?;
        if costs.missing.len() == costs.results.len() {
            let names: Vec<&str> = costs.results.keys().map(String::as_str).collect();
            let reason = format!(
                "{}: expected results of `batzen-lab bench` in directories with these names: {}",
                directory.display(),
                names.join(", ")
            );
            return Err(BenchError::Usage(reason));
        }
        Ok(costs)
    }

    fn read(store: StoreChoice, directory: Option<&Path>) -> Result<Self> {
        let mut reader = Reader { directory, ..Reader::default() };
        let (deposit, others) = match store {
            StoreChoice::Embedded => (DEPOSIT, [REFRESH, AGGREGATOR, TRANSFER, WIREWATCH]),
            StoreChoice::Postgres | StoreChoice::Citus => (
                POSTGRES_DEPOSIT,
                [POSTGRES_REFRESH, POSTGRES_AGGREGATOR, POSTGRES_TRANSFER, POSTGRES_WIREWATCH],
            ),
        };
        let machine = Reader { directory, ..Reader::default() }.read(deposit)?.machine;
        let (withdraw, deposit, serial_share) = match store {
            StoreChoice::Embedded => (
                reader.batched(WITHDRAW, BATCH_WITHDRAW)?,
                reader.batched(DEPOSIT, BATCH_DEPOSIT)?,
                reader.serial_share()?,
            ),
            // A database orders its commits itself.
            StoreChoice::Postgres | StoreChoice::Citus => {
                (reader.unbatched(POSTGRES_WITHDRAW)?, reader.unbatched(POSTGRES_DEPOSIT)?, 0.0)
            }
        };
        let [refresh, aggregate, transfer, credit] = others;
        Ok(Self {
            machine,
            withdraw,
            deposit,
            refresh: reader.single(refresh)?,
            aggregate: reader.single(aggregate)?,
            transfer: reader.single(transfer)?,
            credit: reader.single(credit)?,
            serial_share,
            index_bytes_per_row: index_bytes_per_row(),
            citus: (store == StoreChoice::Citus).then(|| reader.citus()).transpose()?,
            slowdown: None,
            results: reader.results,
            missing: reader.missing,
        })
    }

    /// Adjusts all processor times to a machine.
    pub(crate) fn adjust(&mut self, slowdown: &Slowdown) {
        let batched = [&mut self.withdraw, &mut self.deposit];
        let singles = [&mut self.refresh, &mut self.aggregate, &mut self.transfer, &mut self.credit];
        let all = batched
            .into_iter()
            .flat_map(|cost| [&mut cost.per_coin_us, &mut cost.per_request_us])
            .chain(singles.into_iter().map(|cost| &mut cost.us));
        for stages in all {
            for (stage, us) in stages {
                *us *= if stage == "cpu" { slowdown.cryptography } else { slowdown.other };
            }
        }
        self.slowdown = Some(*slowdown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_results_are_read_and_add_up() {
        for store in [StoreChoice::Embedded, StoreChoice::Postgres, StoreChoice::Citus] {
            let costs = Costs::kept(store);
            let sum = |stages: &Stages| stages.values().sum::<f64>();
            assert!(costs.results.len() >= 6, "{:?}", costs.results);
            for batched in [&costs.withdraw, &costs.deposit] {
                assert!(sum(&batched.per_coin_us) > 1.0 && batched.disk_bytes > 100.0, "{batched:?}");
            }
            for single in [&costs.refresh, &costs.aggregate, &costs.transfer, &costs.credit] {
                assert!(sum(&single.us) > 1.0, "{single:?}");
            }
            assert!(costs.missing.is_empty());
            assert_eq!(costs.citus.is_some(), store == StoreChoice::Citus);
        }
        let citus = Costs::kept(StoreChoice::Citus).citus.unwrap();
        for load in [citus.deposit, citus.mixed] {
            assert!(load.factor > 1.0 && (0.001..1.0).contains(&load.coordinator_share), "{load:?}");
        }
        let share = Costs::kept(StoreChoice::Embedded).serial_share;
        assert!((0.05..0.9).contains(&share), "{share}");
    }

    #[test]
    fn results_of_a_directory_count_before_kept_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let error = Costs::of_results(StoreChoice::Embedded, path).unwrap_err().to_string();
        assert!(error.contains("batch-deposit") && error.contains("lanes"), "{error}");

        let mut result: RunResult = serde_json::from_str(DEPOSIT.1).unwrap();
        result.commit = "mine".to_owned();
        result.machine.model = "my machine".to_owned();
        result.cpu_us_per_op_by_stage.insert("lane".to_owned(), 1_000.0);
        std::fs::create_dir(path.join("deposit")).unwrap();
        std::fs::write(path.join("deposit").join(RESULT_FILE), result.to_json()).unwrap();
        let mut lanes: LanesResult = serde_json::from_str(LANES.1).unwrap();
        let most = lanes.rows.iter().map(|row| row.lanes).max().unwrap();
        for row in &mut lanes.rows {
            row.serial_cpu_us_per_coin = row.lane_cpu_us_per_coin / if row.lanes == most { 4.0 } else { 2.0 };
        }
        std::fs::create_dir(path.join("lanes")).unwrap();
        std::fs::write(path.join("lanes").join(LANES_FILE), serde_json::to_string(&lanes).unwrap()).unwrap();

        let (kept, mine) =
            (Costs::kept(StoreChoice::Embedded), Costs::of_results(StoreChoice::Embedded, path).unwrap());
        assert_eq!((mine.machine.model.as_str(), mine.results["deposit"].as_str()), ("my machine", "mine"));
        assert!((mine.serial_share - 0.25).abs() < 1e-9);
        assert!(mine.deposit.per_request_us["lane"] > kept.deposit.per_request_us["lane"] + 900.0);
        assert_eq!(mine.withdraw, kept.withdraw);
        assert!(!mine.missing.iter().any(|name| name == "deposit" || name == "lanes"), "{:?}", mine.missing);
        assert_eq!(mine.missing.len() + 2, mine.results.len());
        std::fs::write(path.join("deposit").join(RESULT_FILE), "{}").unwrap();
        assert!(Costs::of_results(StoreChoice::Embedded, path).is_err());
    }

    #[test]
    fn runs_on_citus_are_compared_with_those_on_one_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let write = |name: &str, us: f64, share: Option<f64>| {
            let mut result: RunResult = serde_json::from_str(POSTGRES_DEPOSIT.1).unwrap();
            result.commit = "mine".to_owned();
            result.extra.insert("database_cpu_us_per_op".to_owned(), us);
            result.extra.extend(share.map(|share| ("coordinator_cpu_share".to_owned(), share)));
            std::fs::create_dir(path.join(name)).unwrap();
            std::fs::write(path.join(name).join(RESULT_FILE), result.to_json()).unwrap();
        };
        let kept = Costs::kept(StoreChoice::Citus);
        assert_eq!(kept.results["citus-mixed"], "docs/internals/lab/2026-11-26-citus.md");
        let mine = || Costs::of_results(StoreChoice::Citus, path);
        write("citus-deposit", 60.0, Some(0.05));
        assert!(mine().is_err(), "alone it says nothing");
        write("citus-deposit-plain", 40.0, None);
        let costs = mine().unwrap();
        let citus = costs.citus.unwrap();
        assert_eq!(citus.deposit, OnCitus { factor: 1.5, coordinator_share: 0.05 });
        assert_eq!(citus.mixed, kept.citus.unwrap().mixed);
        assert_eq!(
            (costs.results["citus-deposit"].as_str(), costs.results["citus-deposit-plain"].as_str()),
            ("mine", "mine")
        );
        assert_eq!(costs.missing.len() + 2, costs.results.len(), "{:?}", costs.missing);
        write("citus-mixed", 700.0, None);
        write("citus-mixed-plain", 100.0, None);
        let error = mine().unwrap_err().to_string();
        assert!(error.contains("citus-mixed: there is no coordinator_cpu_share"), "{error}");
    }

    #[test]
    fn coins_in_one_request_share_its_cost() {
        let costs = Costs::kept(StoreChoice::Embedded);
        let measured = |text: &str| -> f64 {
            let result: RunResult = serde_json::from_str(text).expect("a result");
            stages(&result).values().sum()
        };
        let at = |coins: f64| -> f64 {
            let deposit = &costs.deposit;
            deposit.per_coin_us.values().sum::<f64>() + deposit.per_request_us.values().sum::<f64>() / coins
        };
        assert!((at(1.0) - measured(DEPOSIT.1)).abs() < 0.01);
        // A stage that costs more in the larger request, by chance, counts as equal.
        let ratio = at(10.0) / measured(BATCH_DEPOSIT.1);
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
    }

    #[test]
    fn slower_machines_cost_more() {
        let kept = Costs::kept(StoreChoice::Embedded);
        let mut slower = kept.clone();
        slower.adjust(&Slowdown { cryptography: 3.0, other: 2.0 });
        let of = |costs: &Costs, stage: &str| costs.deposit.per_coin_us[stage];
        assert!((of(&slower, "cpu") - 3.0 * of(&kept, "cpu")).abs() < 1e-9);
        assert!((of(&slower, "lane") - 2.0 * of(&kept, "lane")).abs() < 1e-9);
    }
}
