//! The plan as a pure function of demand and costs. `docs/planning.md` explains each formula.

use std::collections::BTreeMap;

use serde::Serialize;

use super::StoreChoice;
use super::costs::{Batched, CitusCosts, Costs, STAGES, Single, Stages};
use super::text::bytes;

const SECONDS_PER_DAY: f64 = 86_400.0;
const DAYS_PER_YEAR: f64 = 365.25;
/// Network traffic of a coin in a withdrawal and in a deposit, and of a request without its coins: bytes in both
/// directions, with HTTP and TCP. Estimated from the bodies in the recorded exchanges of the protocol tests (RSA-1024),
/// with 205 characters more for each RSA-2048 value.
const WITHDRAWN_COIN_BYTES: f64 = 1_150.0;
const DEPOSITED_COIN_BYTES: f64 = 950.0;
const REQUEST_BYTES: f64 = 900.0;
/// Network traffic of a change, estimated in the same way: melt and reveal of three fresh coins.
const CHANGE_BYTES: f64 = 6_400.0;
/// The memory of the embedded store's latest index entries; for the others there are filters.
const INDEX_HOT_BYTES: f64 = (1_u64 << 30) as f64;
/// More memory than common machines have.
const MACHINE_MEMORY_BYTES: f64 = (1_u64 << 40) as f64;
/// Rows of a coin: its withdrawal, the coin, its deposit. A change has as many.
const ROWS_PER_COIN: f64 = 3.0;
/// Fewer workers than this are no reason to distribute anything.
const CITUS_WORKERS_MIN: u32 = 2;
/// Shards of a worker, as `dbinit --citus` makes them.
const SHARDS_PER_WORKER: u32 = 2;
/// As many shards as a cluster may have.
const SHARDS_MAX: u32 = 255;
/// Connections of a service to the worker of a shard, for that shard alone: one commits, one is for tools, eight read.
const CONNECTIONS_OF_A_SHARD: u32 = 10;
/// Connections of a service to the coordinator: 16 commit, eight read, one listens, one is for upkeep. For each of them,
/// the coordinator keeps one to each worker.
const CONNECTIONS_OF_COORDINATOR: u32 = 26;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Demand {
    /// In the peak hour.
    pub(crate) payments_per_s: f64,
    pub(crate) coins_per_payment: f64,
    pub(crate) coins_per_withdrawal: f64,
    /// The share of payments whose payer takes change.
    pub(crate) change_share: f64,
    /// Deposits that one transfer pays.
    pub(crate) deposits_per_transfer: f64,
    /// Mean load ÷ peak load.
    pub(crate) mean_share: f64,
    /// Time that rows are kept.
    pub(crate) years: f64,
    /// Utilisation of the cores at the peak, at most 1.
    pub(crate) utilisation: f64,
    /// Copies of everything.
    pub(crate) copies: u32,
    pub(crate) cores_per_machine: u32,
    /// Cores of a worker, on Citus.
    pub(crate) worker_cores: u32,
    /// Where rows are kept.
    pub(crate) store: StoreChoice,
}

/// The resources that the demand needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    pub(crate) demand: Demand,
    /// The costs that it was computed from.
    pub costs: Costs,
    /// Coins deposited per second at the peak.
    pub(crate) coins_per_s: f64,
    /// Processor time of a payment with everything that belongs to it, by stage, in microseconds.
    pub(crate) us_per_payment: Stages,
    /// Cores at the peak, by stage, at the wanted utilisation; one copy.
    pub cores: Stages,
    /// The sum of them.
    pub(crate) cores_in_all: f64,
    /// Lanes that the exchange needs: each is one thread.
    pub lanes: u32,
    /// Payments per second that one embedded store can commit at the wanted utilisation, since only one lane of a
    /// store can run in a part of each commit; `None` with a database.
    pub(crate) payments_per_s_of_a_store: Option<f64>,
    /// Embedded stores, each of its own exchange, that commit the payments; one copy.
    pub stores: u32,
    /// Machines for the exchange, with all copies.
    pub(crate) machines: u32,
    /// Cores of the database; 0 without one.
    pub(crate) database_cores: f64,
    /// Machines for the database, with all copies.
    pub(crate) database_machines: u32,
    /// The nodes of the database, if Citus distributes it.
    pub(crate) citus: Option<CitusPlan>,
    /// Bytes that a payment adds to the disk.
    pub(crate) disk_bytes_per_payment: f64,
    /// Bytes that are added a day, in one copy.
    pub(crate) disk_bytes_per_day: f64,
    /// Bytes after all the years, in one copy.
    pub(crate) disk_bytes: f64,
    /// Bytes of indexes in memory (RAM) after all the years, in one copy.
    pub memory_bytes: f64,
    /// Bytes that a payment adds to them.
    pub(crate) memory_bytes_per_payment: f64,
    /// Bytes per second that the journal (or write-ahead log) grows at the peak.
    pub(crate) journal_bytes_per_s: f64,
    /// Bytes per second on the network at the peak, both directions, without copies.
    pub(crate) network_bytes_per_s: f64,
    /// Remarks that a reader should know.
    pub remarks: Vec<String>,
}

/// The nodes of a Citus cluster; one copy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CitusPlan {
    /// Servers that hold the rows.
    pub(crate) workers: u32,
    /// Cores of the coordinator, at the wanted utilisation. They are part of the database's.
    pub(crate) coordinator_cores: f64,
    /// The coordinator's share of the database's processor time.
    pub(crate) coordinator_share: f64,
    /// Cores that one plain server would need for the same load.
    pub(crate) cores_of_one_server: f64,
    /// Shards of each table.
    pub(crate) shards: u32,
    /// Connections to a worker, at most.
    pub(crate) worker_connections: u32,
    /// Connections to the coordinator, at most.
    pub(crate) coordinator_connections: u32,
}

/// Processor time of the database for a payment, in microseconds.
struct DatabaseUs {
    /// On one server.
    plain: f64,
    /// On all nodes of a Citus cluster.
    all: f64,
    coordinator: f64,
}

impl DatabaseUs {
    /// `deposit_us`: what the deposits of a payment take on one server; `plain`: everything does.
    fn on_citus(plain: f64, deposit_us: f64, coins: f64, costs: &CitusCosts) -> Self {
        // The coins of a payment are in different shards, so several are committed through the coordinator.
        let deposit = if coins > 1.0 { costs.mixed } else { costs.deposit };
        let parts = [(deposit_us, deposit), (plain - deposit_us, costs.mixed)];
        let all = |(us, load): &(f64, super::costs::OnCitus)| us * load.factor;
        Self {
            plain,
            all: parts.iter().map(all).sum(),
            coordinator: parts.iter().map(|part| all(part) * part.1.coordinator_share).sum(),
        }
    }
}

/// Adds `times` of a cost.
fn add(sum: &mut Stages, stages: &Stages, times: f64) {
    for (stage, us) in stages {
        *sum.entry(stage.clone()).or_default() += us * times;
    }
}

fn add_batched(sum: &mut Stages, cost: &Batched, requests: f64, coins: f64) {
    add(sum, &cost.per_coin_us, coins);
    add(sum, &cost.per_request_us, requests);
}

impl Plan {
    /// The plan for a demand.
    pub(crate) fn of(demand: &Demand, costs: &Costs) -> Self {
        let coins = demand.coins_per_payment;
        let per_payment = |cost: &Single, times: f64| (cost.clone(), times);
        let others = [
            per_payment(&costs.refresh, demand.change_share),
            per_payment(&costs.aggregate, coins),
            per_payment(&costs.transfer, coins / demand.deposits_per_transfer),
            per_payment(&costs.credit, coins / demand.coins_per_withdrawal),
        ];
        let mut us = Stages::new();
        add_batched(&mut us, &costs.withdraw, coins / demand.coins_per_withdrawal, coins);
        let mut of_deposit = Stages::new();
        add_batched(&mut of_deposit, &costs.deposit, 1.0, coins);
        add(&mut us, &of_deposit, 1.0);
        others.iter().for_each(|(cost, times)| add(&mut us, &cost.us, *times));
        let database_us = |stages: &Stages| stages.get("database").copied().unwrap_or(0.0);
        let on_citus = costs
            .citus
            .as_ref()
            .map(|citus| DatabaseUs::on_citus(database_us(&us), database_us(&of_deposit), coins, citus));
        if let Some(on_citus) = &on_citus {
            us.insert("database".to_owned(), on_citus.all);
        }
        let disk_bytes_per_payment = coins * (costs.withdraw.disk_bytes + costs.deposit.disk_bytes)
            + others.iter().map(|(cost, times)| cost.disk_bytes * times).sum::<f64>();
        let rows_per_payment = ROWS_PER_COIN * (coins + demand.change_share);
        let cores_of = |us: f64| demand.payments_per_s * us / 1e6 / demand.utilisation;
        let cores: BTreeMap<String, f64> = STAGES
            .iter()
            .filter(|stage| **stage != "database")
            .filter_map(|stage| Some(((*stage).to_owned(), cores_of(*us.get(*stage)?))))
            .collect();
        let cores_in_all: f64 = cores.values().sum();
        let database_cores = cores_of(database_us(&us));
        let serial_us = us.get("lane").copied().unwrap_or(0.0) * costs.serial_share;
        let payments_per_s_of_a_store = (demand.store == StoreChoice::Embedded && serial_us > 0.0)
            .then(|| demand.utilisation * 1e6 / serial_us);
        let stores = payments_per_s_of_a_store.map_or(1, |most| whole(demand.payments_per_s / most));
        let machines = |cores: f64| whole(cores / f64::from(demand.cores_per_machine)) * demand.copies;
        let lanes = whole(cores.get("lane").copied().unwrap_or(0.0));
        let machines_of_exchange = machines(cores_in_all).max(stores * demand.copies);
        let citus = on_citus.map(|us| {
            let coordinator_cores = cores_of(us.coordinator);
            let of_worker = (database_cores - coordinator_cores) / f64::from(demand.worker_cores);
            let workers = whole(of_worker).max(CITUS_WORKERS_MIN);
            let shards = workers.saturating_mul(SHARDS_PER_WORKER).min(SHARDS_MAX).max(workers);
            let services = machines_of_exchange / demand.copies;
            let coordinator_connections = services.saturating_mul(CONNECTIONS_OF_COORDINATOR);
            let of_shards = shards.div_ceil(workers) * CONNECTIONS_OF_A_SHARD;
            CitusPlan {
                workers,
                coordinator_cores,
                coordinator_share: us.coordinator / us.all.max(f64::MIN_POSITIVE),
                cores_of_one_server: cores_of(us.plain),
                shards,
                worker_connections: services
                    .saturating_mul(of_shards)
                    .saturating_add(coordinator_connections),
                coordinator_connections,
            }
        });
        let database_machines = match &citus {
            Some(citus) => citus.workers.saturating_add(1).saturating_mul(demand.copies),
            None if database_cores > 0.0 => machines(database_cores),
            None => 0,
        };
        let payments_per_day = demand.payments_per_s * demand.mean_share * SECONDS_PER_DAY;
        let days = demand.years * DAYS_PER_YEAR;
        let is_embedded = demand.store == StoreChoice::Embedded;
        let memory_bytes_per_payment =
            if is_embedded { rows_per_payment * costs.index_bytes_per_row } else { 0.0 };
        let memory_bytes = INDEX_HOT_BYTES + payments_per_day * days * memory_bytes_per_payment;
        let network = coins * (WITHDRAWN_COIN_BYTES + DEPOSITED_COIN_BYTES)
            + REQUEST_BYTES * (1.0 + coins / demand.coins_per_withdrawal)
            + demand.change_share * CHANGE_BYTES;
        let mut plan = Self {
            demand: demand.clone(),
            costs: costs.clone(),
            coins_per_s: demand.payments_per_s * coins,
            us_per_payment: us,
            // On Citus, each service has a lane for each worker, and one for what concerns several.
            lanes: citus.as_ref().map_or(lanes, |citus| citus.workers.saturating_add(1)),
            cores,
            cores_in_all,
            payments_per_s_of_a_store,
            stores,
            machines: machines_of_exchange,
            database_cores,
            database_machines,
            citus,
            disk_bytes_per_payment,
            disk_bytes_per_day: payments_per_day * disk_bytes_per_payment,
            disk_bytes: payments_per_day * days * disk_bytes_per_payment,
            memory_bytes: if is_embedded { memory_bytes } else { 0.0 },
            memory_bytes_per_payment,
            journal_bytes_per_s: demand.payments_per_s * disk_bytes_per_payment,
            network_bytes_per_s: demand.payments_per_s * network,
            remarks: Vec::new(),
        };
        plan.remark();
        plan
    }

    fn remark_on_citus(&mut self) {
        let Some(citus) = &self.citus else { return };
        let worker_cores = self.demand.worker_cores;
        if citus.cores_of_one_server <= f64::from(worker_cores) {
            self.remarks.push(format!(
                "one server with the cores of a worker carries this load (--store postgres): it needs {:.1}",
                citus.cores_of_one_server
            ));
        }
        if citus.coordinator_cores > f64::from(worker_cores) {
            self.remarks.push(format!(
                "the coordinator is a single server, and needs more cores than a worker has: {:.0}",
                citus.coordinator_cores.ceil()
            ));
        }
        if citus.workers > SHARDS_MAX {
            self.remarks
                .push(format!("a cluster has at most {SHARDS_MAX} shards: this load needs more workers"));
        }
        self.remarks.push(
            "what Citus adds was measured with two workers that shared two cores, without a network, and not for \
             worker programs: they count as the mixed load"
                .to_owned(),
        );
    }

    fn remark(&mut self) {
        let machines_of_a_copy = self.machines / self.demand.copies;
        if let Some(most) = self.payments_per_s_of_a_store.filter(|_| self.stores > 1) {
            self.remarks.push(format!(
                "commits of one embedded store run one at a time in a part of their work: it can take {most:.0} payments a \
                 second, however many cores it has"
            ));
        }
        if !self.costs.missing.is_empty() {
            self.remarks.push(format!(
                "the directory has no results of {}: their costs are those of the kept results, of another machine",
                self.costs.missing.join(", ")
            ));
        }
        if self.demand.store == StoreChoice::Embedded && machines_of_a_copy > 1 {
            let more_cores = if self.stores > 1 { "" } else { "or machines with more cores, " };
            self.remarks.push(format!(
                "an embedded store belongs to one machine: this needs {machines_of_a_copy} exchanges, each with its \
                 own denominations, {more_cores}or --store postgres"
            ));
        }
        let memory_of_a_machine = self.memory_bytes / f64::from(machines_of_a_copy);
        if memory_of_a_machine > MACHINE_MEMORY_BYTES {
            self.remarks.push(format!(
                "the indexes need {} of RAM in each machine in the end: keep rows for fewer years (batzen exchange \
                 archive), or --store postgres",
                bytes(memory_of_a_machine)
            ));
        }
        self.remark_on_citus();
        if self.costs.slowdown.is_none() {
            self.remarks.push(format!(
                "processor times are those of {}; --measure adjusts them",
                self.costs.machine.model
            ));
        }
        self.remarks.push(
            "the kept runs took seconds on an empty store, and cores are assumed to scale linearly up to the \
             utilisation: measure with your own load before you buy"
                .to_owned(),
        );
    }
}

/// The next whole number, at least 1.
fn whole(number: f64) -> u32 {
    // Saturates, which no real demand reaches.
    number.ceil().max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::costs::OnCitus;

    fn demand() -> Demand {
        Demand {
            payments_per_s: 1_000.0,
            coins_per_payment: 3.0,
            coins_per_withdrawal: 10.0,
            change_share: 0.5,
            deposits_per_transfer: 100.0,
            mean_share: 0.25,
            years: 2.0,
            utilisation: 0.5,
            copies: 2,
            cores_per_machine: 8,
            worker_cores: 4,
            store: StoreChoice::Embedded,
        }
    }

    fn costs() -> Costs {
        let stages = |lane: f64, cpu: f64| Stages::from([("lane".to_owned(), lane), ("cpu".to_owned(), cpu)]);
        let mut costs = Costs::kept(StoreChoice::Embedded);
        let batched = |lane, cpu| Batched {
            per_coin_us: stages(lane, cpu),
            per_request_us: stages(10.0, 0.0),
            disk_bytes: 500.0,
        };
        let single = |lane, disk_bytes| Single { us: stages(lane, 0.0), disk_bytes };
        costs.withdraw = batched(5.0, 60.0);
        costs.deposit = batched(8.0, 10.0);
        costs.refresh = single(40.0, 2_000.0);
        costs.aggregate = single(2.0, 300.0);
        costs.transfer = single(10.0, 200.0);
        costs.credit = single(4.0, 250.0);
        costs.serial_share = 0.1;
        costs
    }

    #[test]
    fn plan_adds_up_by_hand() {
        let plan = Plan::of(&demand(), &costs());
        // Withdrawal 3 × 5 + 0.3 × 10, deposit 3 × 8 + 10, half a change, three aggregated, 0.03 transfers, 0.3
        // credits.
        let lane = 15.0 + 3.0 + 24.0 + 10.0 + 20.0 + 6.0 + 0.3 + 1.2;
        assert!((plan.us_per_payment["lane"] - lane).abs() < 1e-9, "{:?}", plan.us_per_payment);
        assert!((plan.us_per_payment["cpu"] - 210.0).abs() < 1e-9);
        // 1,000 a second at half of each core.
        assert!((plan.cores["cpu"] - 0.42).abs() < 1e-9);
        assert_eq!(plan.lanes, 1);
        assert_eq!((plan.machines, plan.database_machines), (2, 0));
        let disk = 3.0 * 1_000.0 + 1_000.0 + 900.0 + 6.0 + 75.0;
        assert!((plan.disk_bytes_per_payment - disk).abs() < 1e-9);
        assert!((plan.disk_bytes_per_day - 21_600_000.0 * disk).abs() < 1.0);
        let rows = 10.5 * 21_600_000.0 * 730.5;
        let index_bytes = costs().index_bytes_per_row * rows;
        assert!((plan.memory_bytes - (1_073_741_824.0 + index_bytes)).abs() < 1.0, "{}", plan.memory_bytes);
        assert!((plan.journal_bytes_per_s - 1_000.0 * disk).abs() < 1e-6);
    }

    #[test]
    fn twice_the_load_needs_twice_as_much() {
        let costs = Costs::kept(StoreChoice::Postgres);
        let demand = Demand { store: StoreChoice::Postgres, ..demand() };
        let (one, two) = (
            Plan::of(&demand, &costs),
            Plan::of(&Demand { payments_per_s: 2_000.0, ..demand.clone() }, &costs),
        );
        for figure in [
            |plan: &Plan| plan.cores_in_all,
            |plan: &Plan| plan.database_cores,
            |plan: &Plan| plan.disk_bytes,
            |plan: &Plan| plan.network_bytes_per_s,
        ] {
            assert!(figure(&one) > 0.0 && (figure(&two) / figure(&one) - 2.0).abs() < 1e-9);
        }
    }

    #[test]
    fn nodes_of_citus_add_up_by_hand() {
        let on_citus = |factor, coordinator_share| OnCitus { factor, coordinator_share };
        let mut costs = costs();
        let database = |us: f64| Stages::from([("database".to_owned(), us)]);
        costs.deposit.per_coin_us.extend(database(20.0));
        costs.deposit.per_request_us.extend(database(10.0));
        costs.refresh.us.extend(database(200.0));
        costs.citus = Some(CitusCosts { deposit: on_citus(2.0, 0.1), mixed: on_citus(5.0, 0.4) });
        let demand = |coins_per_payment, payments_per_s| Demand {
            store: StoreChoice::Citus,
            coins_per_payment,
            payments_per_s,
            ..demand()
        };
        // One coin: 30 µs of deposits on one server, and 100 of change; 10,000 a second at half of each core.
        let plan = Plan::of(&demand(1.0, 10_000.0), &costs);
        let citus = plan.citus.as_ref().unwrap();
        assert!((citus.cores_of_one_server - 2.6).abs() < 1e-9);
        assert!((plan.database_cores - 0.02 * (60.0 + 500.0)).abs() < 1e-9, "{}", plan.database_cores);
        assert!((citus.coordinator_cores - 0.02 * (6.0 + 200.0)).abs() < 1e-9);
        assert!((citus.coordinator_share - 206.0 / 560.0).abs() < 1e-9);
        // (11.2 - 4.12) cores on workers of 4; two copies of these and of the coordinator.
        assert_eq!((citus.workers, citus.shards, plan.lanes, plan.database_machines), (2, 4, 3, 6));
        let services = plan.machines / 2;
        assert_eq!(citus.coordinator_connections, services * 26);
        assert_eq!(citus.worker_connections, services * (26 + 2 * 10));
        let remark = |plan: &Plan, part: &str| plan.remarks.iter().any(|remark| remark.contains(part));
        assert!(remark(&plan, "one server") && remark(&plan, "needs more cores than a worker has: 5"));

        // Three coins are in several shards: 70 µs, all of it as in the mixed load.
        let plan = Plan::of(&demand(3.0, 10_000.0), &costs);
        assert!((plan.database_cores - 0.02 * 5.0 * 170.0).abs() < 1e-9, "{}", plan.database_cores);
        // 17 × 0.6 cores.
        assert_eq!(plan.citus.as_ref().unwrap().workers, 3);
        assert!(remark(&plan, "one server"));
        let plan = Plan::of(&demand(3.0, 20_000.0), &costs);
        assert!(!remark(&plan, "one server"), "it would need 6.8 cores");
    }

    #[test]
    fn serial_part_of_commits_bounds_a_store() {
        // A payment takes 79.5 µs of a lane, of which a tenth is serial: at half of the time 62,893 payments a second.
        let demand = |payments_per_s| Demand { payments_per_s, cores_per_machine: 4_096, ..demand() };
        let plan = Plan::of(&demand(62_800.0), &costs());
        let most = plan.payments_per_s_of_a_store.unwrap();
        assert!((most - 0.5e6 / 7.95).abs() < 1.0, "{most}");
        assert_eq!((plan.stores, plan.machines), (1, 2));
        let plan = Plan::of(&demand(63_000.0), &costs());
        assert_eq!((plan.stores, plan.machines), (2, 4));
        assert!(plan.remarks[0].contains("62893 payments"), "{:?}", plan.remarks);
        let database = Demand { store: StoreChoice::Postgres, ..demand(63_000.0) };
        let plan = Plan::of(&database, &Costs::kept(StoreChoice::Postgres));
        assert_eq!((plan.stores, plan.payments_per_s_of_a_store), (1, None));
    }

    #[test]
    fn more_than_one_machine_on_the_embedded_store_is_remarked() {
        let country = Demand { payments_per_s: 100_000.0, ..demand() };
        let plan = Plan::of(&country, &costs());
        assert!(plan.machines > 2 && plan.remarks.iter().any(|remark| remark.contains("exchanges")));
        assert!(
            plan.remarks.iter().any(|remark| remark.contains("TB of RAM in each machine")),
            "{:?}",
            plan.remarks
        );
        let small = Plan::of(&demand(), &costs());
        assert!(!small.remarks.iter().any(|remark| remark.contains("exchanges") || remark.contains("RAM")));
    }
}
