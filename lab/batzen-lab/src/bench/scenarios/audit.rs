//! `batzen-lab bench audit`: how many withdrawals and deposits an auditor checks per second and core, and what an
//! increment costs compared with a whole audit. All rows have real keys and signatures, and nothing is found in them.

use std::fmt::Write as _;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use batzen_auditor::audit::forward::{NothingForward, SHORT_HISTORY_ROWS};
use batzen_auditor::audit::{
    AuditOutcome, Auditor, Options, Progress as AuditProgress, RowChange, Subject, Totals, Version,
};
use batzen_cli_support::numbers;
use batzen_crypto::denom::{blind_sign_batch, prepare_planchet};
use batzen_crypto::{
    BlindingSecret, Cipher, CsOperation, DenomPrivateKey, DenomPublicKey, DenomSignature, EddsaPrivateKey,
    EddsaPublicKey, EddsaSignature, ExchangeWithdrawValues, HashCode, WireSalt,
};
use batzen_protocol::payto::{h_payto, h_wire};
use batzen_protocol::signatures::{SignedMessage, WalletCoinDeposit, WalletReserveWithdraw};
use batzen_protocol::{Currency, Duration, Money, Timestamp};
use batzen_store::embedded::{EmbeddedStore, Options as StoreOptions};
use batzen_store::{Change, ChangeSet, CommitOutcome, Store, StoreError};
use batzen_tables::exchange::{
    ALL, AUDITED, AccountId, CoinKey, CoinRow, Coins, DenomKey, DenomRow, DenomSerial, Denominations,
    DepositKey, DepositRow, Deposits, ReserveInKey, ReserveInRow, ReserveKey, ReserveRow, Reserves,
    ReservesIn, WireFeeKey, WireFeeRow, WireFees, WireTargetKey, WireTargetRow, WireTargets, WithdrawalKey,
    WithdrawalRow, Withdrawals,
};
use clap::Args;
use rayon::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::progress::Progress;
use crate::bench::results::machine::Machine;
use crate::bench::results::output;
use crate::bench::scenarios::Context;
use crate::bench::scenarios::workers::money;

const COINS_PER_RESERVE: u64 = 10;
/// Coins that are prepared and committed together.
const BATCH: u64 = 1_000;
/// Reserves whose coins a thread makes at once: enough to fill the lanes of signatures.
const RESERVES_AT_ONCE: usize = 8;
/// The cost of a coin to its reserve.
const COST: &str = "1.01";
/// Changes in an increment.
const INCREMENT: usize = 4_000;
const CUSTOMER: &str = "payto://x-taler-bank/localhost/customer?receiver-name=Customer";
const MERCHANT: &str = "payto://x-taler-bank/localhost/merchant?receiver-name=Merchant";
const BASE_URL: &str = "http://localhost/";
/// The day of all rows: 20 November 2026.
const DAY: Timestamp = Timestamp::from_secs(1_795_132_800);

/// Arguments of `batzen-lab bench audit`.
#[derive(Args, Clone, Debug)]
pub struct AuditArgs {
    /// Coins that are withdrawn and deposited
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub(crate) coins: u64,
    /// Further coins that the increment has, in hundredths of all coins
    #[arg(long, value_name = "PERCENT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) changed: u64,
    /// Threads that verify; one more reads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub(crate) threads: u16,
    /// Bits of the denomination's RSA key
    #[arg(long, value_name = "BITS", default_value_t = 2_048, value_parser = clap::value_parser!(u32).range(1_024..=8_192))]
    pub(crate) rsa_bits: u32,
    /// Directory of the store, on the disk to measure [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<std::path::PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A measured part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AuditRate {
    /// Withdrawals or deposits.
    pub(crate) items: u64,
    /// Seconds.
    pub(crate) wall_s: f64,
    /// CPU time of all threads, in seconds.
    pub(crate) cpu_s: f64,
    /// Items per second of CPU time: what one core checks.
    pub(crate) per_core_s: f64,
}

impl AuditRate {
    fn of(items: u64, (wall_s, cpu_s): (f64, f64)) -> Self {
        Self { items, wall_s, cpu_s, per_core_s: items as f64 / cpu_s }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AuditResult {
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// The version of the program.
    pub(crate) version: String,
    /// The commit it was built from, or `unknown`.
    pub(crate) commit: String,
    /// Bits of the denomination's key.
    pub(crate) rsa_bits: u32,
    /// Threads that verified.
    pub(crate) threads: u16,
    /// Withdrawals: the reserve's signature, the denomination's time, the reserve's balance.
    pub(crate) withdrawals: AuditRate,
    /// Deposits: the coin's and the denomination's signatures, the coin's balance.
    pub(crate) deposits: AuditRate,
    /// Rows of the whole audit per second of CPU time.
    pub(crate) rows_per_core_s: f64,
    /// Signatures of the whole audit per second of CPU time.
    pub(crate) signatures_per_core_s: f64,
    pub(crate) increment_coins: u64,
    /// Time that the increment's checks took, in seconds.
    pub(crate) increment_wall_s: f64,
    /// CPU time of the increment's checks, in seconds.
    pub(crate) increment_cpu_s: f64,
    /// CPU time of the commits of its rows to the auditor's copy, in seconds.
    pub(crate) commit_cpu_s: f64,
    /// The CPU time of both, as a share of the whole audit's.
    pub(crate) increment_share: f64,
}

/// Runs the measurement.
///
/// # Errors
/// If the store cannot be used.
pub fn run(args: &AuditArgs, context: &Context) -> Result<ExitCode> {
    let result = measure(args, context)?;
    output::print(&if args.json { output::json(&result) } else { table(&result) })?;
    Ok(ExitCode::SUCCESS)
}

/// The keys of everybody.
struct Cast {
    currency: Currency,
    master: EddsaPrivateKey,
    merchant: EddsaPrivateKey,
    denom: DenomPrivateKey,
    public: DenomPublicKey,
    row: DenomRow,
    salt: WireSalt,
    h_wire: HashCode,
}

impl Cast {
    fn new(rsa_bits: u32) -> Result<Self> {
        let currency = Currency::new("KUDOS").expect("a currency");
        let master = EddsaPrivateKey::generate();
        let denom = DenomPrivateKey::generate_rsa(rsa_bits)
            .map_err(|error| BenchError::set_up("cannot make a denomination", error))?;
        let public = denom.public(0);
        let day = |days| DAY.saturating_add(Duration::from_days(days));
        let mut row = DenomRow {
            h_denom_pub: public.h_denom_pub(),
            cipher: Cipher::Rsa,
            public_key: public.key_bytes().to_vec(),
            age_mask: 0,
            value: money("1"),
            fee_withdraw: money("0.01"),
            fee_deposit: money("0.01"),
            fee_refresh: money("0.01"),
            fee_refund: money("0.01"),
            start: DAY,
            expire_withdraw: day(7),
            expire_deposit: day(700),
            expire_legal: day(3_650),
            master_sig: EddsaSignature::from_bytes([0; 64]),
        };
        row.master_sig = row.validity(master.public_key(), currency).sign(&master);
        let salt = WireSalt::from_bytes([7; 16]);
        let (merchant, h_wire) = (EddsaPrivateKey::generate(), h_wire(MERCHANT, &salt));
        Ok(Self { currency, master, merchant, denom, public, row, salt, h_wire })
    }

    fn subject(&self) -> Subject {
        Subject {
            currency: self.currency,
            master_pub: self.master.public_key(),
            base_url: BASE_URL.to_owned(),
            round_unit: 1_000_000,
            auditor: None,
        }
    }

    /// The small tables.
    fn terms(&self) -> ChangeSet {
        let mut changes = ChangeSet::new();
        changes.insert::<Denominations>(&DenomKey { serial: DenomSerial(1) }, &self.row);
        let mut fee = WireFeeRow {
            end: DAY.saturating_add(Duration::from_days(3_650)),
            wire_fee: money("0.01"),
            closing_fee: money("0.01"),
            master_sig: EddsaSignature::from_bytes([0; 64]),
        };
        let key = WireFeeKey { method: "x-taler-bank".to_owned(), start: DAY };
        fee.master_sig = fee.message(&key, self.currency).sign(&self.master);
        changes.insert::<WireFees>(&key, &fee);
        for payto_uri in [CUSTOMER, MERCHANT] {
            let row = WireTargetRow { payto_uri: payto_uri.to_owned() };
            changes.insert::<WireTargets>(&WireTargetKey { h_payto: h_payto(payto_uri) }, &row);
        }
        changes
    }

    /// A reserve whose money was withdrawn, without its coins.
    fn reserve(&self, number: u64, reserve_pub: EddsaPublicKey, withdrawn: &mut ChangeSet) {
        let cost = money(COST).checked_mul(COINS_PER_RESERVE).expect("a small amount");
        let year = DAY.saturating_add(Duration::from_days(365));
        withdrawn.insert::<Reserves>(
            &ReserveKey { reserve_pub },
            &ReserveRow { balance: Money::ZERO, expiration: year, gc: year, origin: Some(h_payto(CUSTOMER)) },
        );
        let account = AccountId::of_payto("payto://x-taler-bank/localhost/exchange");
        withdrawn.insert::<ReservesIn>(
            &ReserveInKey { reserve_pub, account, bank_row: number + 1 },
            &ReserveInRow { amount: cost, h_payto: h_payto(CUSTOMER), time: DAY },
        );
    }

    /// Reserves with these numbers, and their coins, whose signatures are made in lanes.
    fn withdraw(&self, numbers: Range<u64>) -> Result<(ChangeSet, Vec<Coin>)> {
        let failed = |error| BenchError::set_up("cannot make a coin", error);
        let mut withdrawn = ChangeSet::new();
        let mut planchets = Vec::new();
        for number in numbers {
            let reserve = EddsaPrivateKey::generate();
            self.reserve(number, reserve.public_key(), &mut withdrawn);
            for _ in 0..COINS_PER_RESERVE {
                let key = EddsaPrivateKey::generate();
                let (values, blinding) = (ExchangeWithdrawValues::Rsa, BlindingSecret::generate());
                let coin_pub = key.public_key();
                let (planchet, unblind) =
                    prepare_planchet(&self.public, &values, None, &coin_pub, &blinding, None)
                        .map_err(failed)?;
                let h_coin_ev = planchet.hash(&self.row.h_denom_pub);
                let message = WalletReserveWithdraw {
                    amount_with_fee: money(COST).of(self.currency),
                    h_denom_pub: self.row.h_denom_pub,
                    h_coin_envelope: h_coin_ev,
                };
                let withdrawal = WithdrawalKey { reserve_pub: reserve.public_key(), h_coin_ev };
                planchets.push((key, planchet, unblind, withdrawal, message.sign(&reserve)));
            }
        }
        let requests: Vec<_> = planchets
            .iter()
            .map(|(_, planchet, ..)| (&self.denom, planchet, CsOperation::Withdraw))
            .collect();
        let signatures = blind_sign_batch(&requests);
        let mut coins = Vec::with_capacity(planchets.len());
        for ((key, _, unblind, withdrawal, reserve_sig), ev_sig) in planchets.into_iter().zip(signatures) {
            let ev_sig = ev_sig.map_err(failed)?;
            coins.push(Coin { key, denom_sig: unblind.unblind(&ev_sig).map_err(failed)? });
            withdrawn.insert::<Withdrawals>(
                &withdrawal,
                &WithdrawalRow { denom: DenomSerial(1), reserve_sig, ev_sig, time: DAY },
            );
        }
        Ok((withdrawn, coins))
    }

    /// A coin that is deposited.
    fn deposit(&self, coin: &Coin, deposited: &mut ChangeSet) {
        let coin_pub = coin.key.public_key();
        deposited.insert::<Coins>(
            &CoinKey { coin_pub },
            &CoinRow {
                denom: DenomSerial(1),
                h_age: None,
                denom_sig: coin.denom_sig.clone(),
                remaining: Money::ZERO,
                zombie: false,
            },
        );
        let h_contract_terms = batzen_crypto::hash::sha512(coin_pub.as_bytes());
        let merchant_pub = self.merchant.public_key();
        let message = WalletCoinDeposit {
            h_contract_terms,
            h_age_commitment: batzen_crypto::ShortHash::from_bytes([0; 32]),
            h_policy: HashCode::from_bytes([0; 64]),
            h_wire: self.h_wire,
            h_denom_pub: self.row.h_denom_pub,
            wallet_timestamp: DAY,
            refund_deadline: DAY,
            amount_with_fee: self.row.value.of(self.currency),
            deposit_fee: self.row.fee_deposit.of(self.currency),
            merchant_pub,
        };
        deposited.insert::<Deposits>(
            &DepositKey { coin_pub, merchant_pub, h_contract_terms },
            &DepositRow {
                denom: DenomSerial(1),
                amount: self.row.value,
                wallet_time: DAY,
                exchange_time: DAY,
                refund_deadline: DAY,
                wire_deadline: DAY.saturating_add(Duration::from_days(365)),
                wire_salt: self.salt,
                h_payto: h_payto(MERCHANT),
                coin_sig: message.sign(&coin.key),
                refunded: Money::ZERO,
                wtid: None,
            },
        );
    }

    /// Reserves with these numbers and their coins, made by all processors.
    fn withdrawals(&self, numbers: Range<u64>) -> Result<(ChangeSet, Vec<Coin>)> {
        let parts: Vec<_> = numbers.clone().step_by(RESERVES_AT_ONCE).collect();
        let end = numbers.end;
        let part = |from| self.withdraw(from..end.min(from + RESERVES_AT_ONCE as u64));
        let made: Result<Vec<_>, _> = parts.into_par_iter().map(part).collect();
        let (mut withdrawn, mut coins) = (ChangeSet::new(), Vec::new());
        for (changes, more) in made? {
            withdrawn.append(changes);
            coins.extend(more);
        }
        Ok((withdrawn, coins))
    }

    /// The deposits of these coins, signed by all processors.
    fn deposits(&self, coins: &[Coin]) -> ChangeSet {
        let part = |coins: &[Coin]| {
            let mut deposited = ChangeSet::new();
            coins.iter().for_each(|coin| self.deposit(coin, &mut deposited));
            deposited
        };
        let mut deposited = ChangeSet::new();
        coins.par_chunks(64).map(part).collect::<Vec<_>>().into_iter().for_each(|set| deposited.append(set));
        deposited
    }
}

/// The data of a coin that are kept until it is deposited.
struct Coin {
    key: EddsaPrivateKey,
    denom_sig: DenomSignature,
}

fn commit(store: &Store, changes: &ChangeSet) -> Result<()> {
    let outcome = store.commit(changes).map_err(store_error)?;
    assert_eq!(outcome, CommitOutcome::Committed, "keys are random");
    Ok(())
}

fn store_error(error: StoreError) -> BenchError {
    BenchError::set_up("the store", error)
}

/// CPU time of this process, in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, (f64, f64))> {
    let (cpu, began) = (cpu_s(), Instant::now());
    let result = work()?;
    Ok((result, (began.elapsed().as_secs_f64(), cpu_s() - cpu)))
}

fn audit(store: &Store, subject: &Subject, threads: u16) -> Result<AuditOutcome> {
    let options = Options {
        now: DAY,
        internal: true,
        in_order: true,
        threads: threads.into(),
        bank: Vec::new(),
        confirmations: Vec::new(),
        copied: None,
    };
    let outcome = batzen_auditor::audit::audit(store, subject, &options, &AuditProgress::default())
        .map_err(|error| BenchError::set_up("the audit", error))?;
    if let Some(finding) = outcome.faults().next() {
        return Err(BenchError::set_up("the audit finds something", format!("{finding:?}")));
    }
    Ok(outcome)
}

/// Measures without printing.
pub(crate) fn measure(args: &AuditArgs, context: &Context) -> Result<AuditResult> {
    let place = super::temporary("batzen-audit-", args.dir.as_deref())?;
    let store = EmbeddedStore::open(place.path().join("store"), ALL, StoreOptions::default());
    let store = Store::new(store.map_err(store_error)?);
    let cast = Cast::new(args.rsa_bits)?;
    let subject = cast.subject();
    commit(&store, &cast.terms())?;
    let reserves = args.coins.div_ceil(COINS_PER_RESERVE);
    let coins = reserves * COINS_PER_RESERVE;
    let progress = Progress::new(context.shows_progress && !args.json);
    let bar = progress.bar("making coins", coins);
    let mut undeposited = Vec::new();
    let mut made = 0;
    while made < reserves {
        let next = (made + BATCH / COINS_PER_RESERVE).min(reserves);
        let (withdrawn, fresh) = cast.withdrawals(made..next)?;
        commit(&store, &withdrawn)?;
        undeposited.extend(fresh);
        made = next;
        bar.set(made * COINS_PER_RESERVE);
    }
    drop(bar);
    let bar = progress.waiting("auditing withdrawals");
    let (_, withdrawals) = timed(|| audit(&store, &subject, args.threads))?;
    drop(bar);
    let bar = progress.bar("depositing coins", coins);
    for part in undeposited.chunks(BATCH as usize) {
        commit(&store, &cast.deposits(part))?;
        bar.set(bar.position() + part.len() as u64);
    }
    drop((bar, undeposited));
    let bar = progress.waiting("auditing everything");
    let (outcome, everything) = timed(|| audit(&store, &subject, args.threads))?;
    drop(bar);
    let share = (everything.0 - withdrawals.0, everything.1 - withdrawals.1);
    let more = (reserves * args.changed).div_ceil(100).max(1);
    let ((increment_wall_s, increment_cpu_s), commit_cpu_s) =
        increments(&store, &cast, made..made + more, args.threads)?;
    store.close().map_err(store_error)?;
    Ok(AuditResult {
        machine: Machine::detect(),
        version: context.version.clone(),
        commit: context.commit.clone(),
        rsa_bits: args.rsa_bits,
        threads: args.threads,
        withdrawals: AuditRate::of(coins, withdrawals),
        deposits: AuditRate::of(coins, share),
        rows_per_core_s: outcome.rows as f64 / everything.1,
        signatures_per_core_s: outcome.signatures as f64 / everything.1,
        increment_coins: more * COINS_PER_RESERVE,
        increment_wall_s,
        increment_cpu_s,
        commit_cpu_s,
        increment_share: (increment_cpu_s + commit_cpu_s) / everything.1,
    })
}

/// Audits further reserves as increments, and returns wall and CPU time of checks, and CPU time of commits.
fn increments(store: &Store, cast: &Cast, numbers: Range<u64>, threads: u16) -> Result<((f64, f64), f64)> {
    let subject = cast.subject();
    let frozen = store.freeze(AUDITED).map_err(store_error)?;
    let terms = batzen_auditor::audit::read_terms(&*frozen, &subject).map_err(store_error)?;
    let (mut set, fresh) = cast.withdrawals(numbers)?;
    set.append(cast.deposits(&fresh));
    let mut totals = Totals::default();
    let (mut wall_s, mut checks_s, mut commits_s) = (0.0, 0.0, 0.0);
    for part in set.changes().chunks(INCREMENT) {
        let mut changes = ChangeSet::new();
        part.iter().for_each(|change| changes.push(change.clone()));
        let rows: Vec<RowChange> = part.iter().map(row_change).collect();
        let auditor = Auditor {
            subject: &subject,
            terms: &terms,
            seen: store,
            closings: &|_| Ok(Vec::new()),
            forward: &NothingForward,
            short_history_rows: SHORT_HISTORY_ROWS,
            now: DAY,
            threads: threads.into(),
        };
        let (increment, (waited, spent)) = timed(|| auditor.apply(&rows, &mut totals).map_err(store_error))?;
        wall_s += waited;
        checks_s += spent;
        assert!(increment.rows >= part.len() as u64, "every change is posted");
        let ((), (_, spent)) = timed(|| commit(store, &changes))?;
        commits_s += spent;
    }
    Ok(((wall_s, checks_s), commits_s))
}

fn row_change(change: &Change) -> RowChange {
    let new = change.new_row().map(|row| Version { row: row.to_vec(), serial: 0 });
    RowChange { table: change.table(), key: change.key().to_vec(), old: None, new }
}

fn table(result: &AuditResult) -> String {
    let mut out = String::new();
    let rate = |out: &mut String, name: &str, rate: &AuditRate| {
        let _ = writeln!(
            out,
            "{name:12} {:>10} in {:>7.2} s, {:>5.1} us of CPU each: {:>8} per second and core",
            numbers::count(rate.items),
            rate.wall_s,
            1e6 / rate.per_core_s,
            numbers::count(rate.per_core_s as u64),
        );
    };
    rate(&mut out, "withdrawals", &result.withdrawals);
    rate(&mut out, "deposits", &result.deposits);
    let _ = writeln!(
        out,
        "{} rows and {} signatures per second and core (RSA-{})",
        numbers::count(result.rows_per_core_s as u64),
        numbers::count(result.signatures_per_core_s as u64),
        result.rsa_bits
    );
    let _ = writeln!(
        out,
        "{} more coins as increments in {:.2} s: {:.2} s of CPU for checks and {:.2} s for commits, {:.2} % of the whole audit",
        numbers::count(result.increment_coins),
        result.increment_wall_s,
        result.increment_cpu_s,
        result.commit_cpu_s,
        result.increment_share * 100.0
    );
    out
}
