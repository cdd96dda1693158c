//! A small exchange in memory: denominations, fees, a clock, and builders of commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batzen_crypto::{
    BlindedDenomSignature, Cipher, CsNonce, DenomSignature, EcdhePublicKey, EddsaPublicKey, EddsaSignature,
    HashCode, ShortHash, WireSalt, Wtid,
};
use batzen_engine::{Batcher, Rules};
use batzen_exchange::history::balance_of;
use batzen_exchange::metrics::flow::{MoneyFlow, Sums};
use batzen_exchange::reads::read;
use batzen_exchange::reads::totals::{Totals, totals};
use batzen_exchange::rules::{
    Aggregate, Aggregated, Answer, CloseReserve, Command, Contract, Credit, Credits, DenomProblem,
    DenomTable, Deposit, DepositCoin, ExchangeRules, FinishKyc, LimitedAccount, Melt, Planchet,
    PresentedCoin, PurseCoin, PurseCreate, PurseDelete, PurseExpire, PurseMerge, PurseTerms, Refund, Refusal,
    RequestClose, ReserveHistory, ReserveHistoryItem, ReservePurse, Reveal, RulesConfig, StartKyc,
    TransfersDone, Trigger, Withdraw,
};
use batzen_exchange::workers::liabilities::RowsError;
use batzen_protocol::{Duration, Money, MoneySum, Timestamp};
use batzen_store::{ChangeSet, CommitOutcome, Store, Table, memory::MemoryBackend};
use batzen_tables::exchange::{
    AccountId, ArchiveRuns, CollectedSums, DenomKey, DenomRow, DenomSerial, Denominations, DepositKey,
    DepositTarget, FreshCoin, PaytoHash, PurseMergeRow, RefundKey, RevocationRow, Revocations, WireFeeKey,
    WireFeeRow, WireFees,
};

/// When every test starts, in seconds.
pub(super) const T0: u64 = 1_700_000_000;

/// A sum of many amounts.
pub(super) fn sum(text: &str) -> MoneySum {
    m(text).into()
}

pub(super) fn m(text: &str) -> Money {
    text.parse().unwrap()
}

pub(super) fn at(offset_s: u64) -> Timestamp {
    Timestamp::from_secs(T0 + offset_s)
}

/// A public key that stands for something in a test.
pub(super) fn key(kind: u8, n: u8) -> EddsaPublicKey {
    let mut bytes = [kind; 32];
    bytes[31] = n;
    EddsaPublicKey::from_bytes(bytes)
}

pub(super) fn reserve(n: u8) -> EddsaPublicKey {
    key(1, n)
}

pub(super) fn coin(n: u8) -> EddsaPublicKey {
    key(2, n)
}

pub(super) fn merchant(n: u8) -> EddsaPublicKey {
    key(3, n)
}

pub(super) fn hash(kind: u8, n: u8) -> HashCode {
    let mut bytes = [kind; 64];
    bytes[63] = n;
    HashCode::from_bytes(bytes)
}

pub(super) fn ev(n: u8) -> HashCode {
    hash(4, n)
}

pub(super) fn contract(n: u8) -> HashCode {
    hash(5, n)
}

pub(super) fn rc(n: u8) -> HashCode {
    hash(6, n)
}

pub(super) fn sig(n: u8) -> EddsaSignature {
    EddsaSignature::from_bytes([n; 64])
}

pub(super) fn purse_pub(n: u8) -> EddsaPublicKey {
    key(77, n)
}

/// The terms of a purse.
pub(super) fn purse_terms(target: &str, expiration: u64) -> PurseTerms {
    PurseTerms {
        merge_pub: key(78, 1),
        h_contract_terms: contract(1),
        min_age: 0,
        target: m(target),
        expiration: at(expiration),
        purse_sig: sig(1),
    }
}

pub(super) fn wtid(n: u8) -> Wtid {
    Wtid::from_bytes([n; 32])
}

pub(super) fn payto(n: u8) -> String {
    format!("payto://x-taler-bank/localhost/account-{n}?receiver-name=A")
}

pub(super) fn h_payto(n: u8) -> ShortHash {
    batzen_protocol::payto::h_payto(&payto(n))
}

/// A bank account, as limits see it.
pub(super) fn limited(n: u8) -> LimitedAccount {
    LimitedAccount::of(&payto(n))
}

pub(super) fn account() -> AccountId {
    AccountId::of_payto("payto://x-taler-bank/localhost/exchange?receiver-name=E")
}

pub(super) const METHOD: &str = "x-taler-bank";

/// A blind signature that shows which planchet it belongs to and which attempt made it.
pub(super) fn ev_sig(n: u8, attempt: u8) -> BlindedDenomSignature {
    BlindedDenomSignature::Rsa(vec![1, n, attempt])
}

pub(super) fn denom(serial: u32, cipher: Cipher, value: &str, fees: [&str; 4]) -> (DenomSerial, DenomRow) {
    let [withdraw, deposit, refresh, refund] = fees;
    let row = DenomRow {
        h_denom_pub: hash(7, u8::try_from(serial).unwrap()),
        cipher,
        public_key: vec![u8::try_from(serial).unwrap()],
        age_mask: 0,
        value: m(value),
        fee_withdraw: m(withdraw),
        fee_deposit: m(deposit),
        fee_refresh: m(refresh),
        fee_refund: m(refund),
        start: at(0),
        expire_withdraw: at(1_000),
        expire_deposit: at(2_000),
        expire_legal: at(3_000),
        master_sig: sig(0),
    };
    (DenomSerial(serial), row)
}

/// The denominations of most tests. The fees are for withdraw, deposit, refresh and refund.
pub(super) fn denoms() -> Vec<(DenomSerial, DenomRow)> {
    vec![
        denom(1, Cipher::Rsa, "10", ["0.1", "0.1", "0.05", "0.03"]),
        denom(2, Cipher::Rsa, "2", ["0", "0.2", "0.01", "0"]),
        denom(3, Cipher::Cs, "1", ["0.01", "0", "0", "0.01"]),
    ]
}

pub(super) type Verdict = Result<Answer, Refusal>;

/// An exchange in memory.
pub(super) struct World<R: Rules<Command = Command, Answer = Answer, Refusal = Refusal> = ExchangeRules> {
    pub store: Store,
    pub denoms: Arc<DenomTable>,
    pub rules: ExchangeRules,
    batcher: Batcher<R>,
    now: Arc<AtomicU64>,
}

/// Inserts a row into a store.
pub(super) fn insert<T: Table>(store: &Store, key: &T::Key, row: &T::Row) {
    let mut changes = ChangeSet::new();
    changes.insert::<T>(key, row);
    assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
}

/// The refusal of the first coin of a command, because of its denomination.
pub(super) fn unusable(serial: u32, problem: DenomProblem) -> Refusal {
    Refusal::DenominationUnusable { index: 0, denom: DenomSerial(serial), problem }
}

pub(super) fn config() -> RulesConfig {
    let mut config = RulesConfig::new("http://localhost:8081/");
    config.idle_reserve_expiration = Duration::from_secs(500);
    config
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(&denoms(), config(), |rules| rules)
    }

    /// Another process on the same store, at the same time.
    pub(super) fn again(other: &Self) -> Self {
        let world = Self::over(other.store.clone(), other.rules.config.clone(), |rules| rules);
        world.now.store(other.now.load(Ordering::SeqCst), Ordering::SeqCst);
        world
    }
}

impl<R: Rules<Command = Command, Answer = Answer, Refusal = Refusal>> World<R> {
    pub(super) fn with(
        denoms: &[(DenomSerial, DenomRow)],
        config: RulesConfig,
        wrap: impl FnOnce(ExchangeRules) -> R,
    ) -> Self {
        Self::on(Store::new(MemoryBackend::new()), denoms, config, wrap)
    }

    pub(super) fn on(
        store: Store,
        denoms: &[(DenomSerial, DenomRow)],
        config: RulesConfig,
        wrap: impl FnOnce(ExchangeRules) -> R,
    ) -> Self {
        let mut changes = ChangeSet::new();
        for (serial, row) in denoms {
            changes.insert::<Denominations>(&DenomKey { serial: *serial }, row);
        }
        let periods = [(0, 1_500, "0.01", "0.01"), (1_500, 5_000, "0.02", "0.05")];
        for (start, end, wire_fee, closing_fee) in periods {
            changes.insert::<WireFees>(
                &WireFeeKey { method: METHOD.to_owned(), start: at(start) },
                &WireFeeRow {
                    end: at(end),
                    wire_fee: m(wire_fee),
                    closing_fee: m(closing_fee),
                    master_sig: sig(0),
                },
            );
        }
        assert_eq!(store.commit(&changes).unwrap(), CommitOutcome::Committed);
        Self::over(store, config, wrap)
    }

    /// On a store that has denominations.
    pub(super) fn over(store: Store, config: RulesConfig, wrap: impl FnOnce(ExchangeRules) -> R) -> Self {
        let denoms = Arc::new(DenomTable::load(&store).unwrap());
        let rules = ExchangeRules::new(Arc::clone(&denoms), config);
        let rows = rules.flow.follow(&store).unwrap();
        rules.flow.begin(&denoms, &store, rows.as_ref()).unwrap();
        let batcher = Batcher::new(Arc::new(wrap(rules.clone())), store.clone());
        Self { store, denoms, rules, batcher, now: Arc::new(AtomicU64::new(T0)) }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.now.load(Ordering::SeqCst))
    }

    pub(super) fn advance(&self, seconds: u64) {
        self.now.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Moves the clock back.
    pub(super) fn step_back(&self, seconds: u64) {
        self.now.fetch_sub(seconds, Ordering::SeqCst);
    }

    pub(super) fn revoke(&self, serial: u32) {
        let key = DenomKey { serial: DenomSerial(serial) };
        if self.store.get::<Revocations>(&key).unwrap().is_none() {
            self.insert::<Revocations>(&key, &RevocationRow { master_sig: sig(0), time: self.now() });
        }
    }

    /// Inserts a row, whatever the rules say.
    pub(super) fn insert<T: Table>(&self, key: &T::Key, row: &T::Row) {
        insert::<T>(&self.store, key, row);
    }

    pub(super) fn batch(&self, commands: &[Command]) -> Vec<Verdict> {
        let now = self.now();
        self.batcher.run(commands, &move || now).unwrap()
    }

    /// The same on a store that may fail.
    pub(super) fn try_run(&self, command: Command) -> Result<Verdict, batzen_store::StoreError> {
        let now = self.now();
        Ok(self.batcher.run(&[command], &move || now)?.pop().unwrap())
    }

    pub(super) fn run(&self, command: Command) -> Verdict {
        self.batch(&[command]).pop().unwrap()
    }

    pub(super) fn ok(&self, command: Command) -> Answer {
        self.run(command).unwrap()
    }

    pub(super) fn refused(&self, command: Command) -> Refusal {
        let before = self.totals();
        let refusal = self.run(command).unwrap_err();
        assert_eq!(self.totals(), before, "a refusal changes nothing");
        refusal
    }

    /// The balance sheet. Asserts that it adds up.
    pub(super) fn totals(&self) -> Totals {
        let totals = totals(&self.store, &self.denoms).unwrap();
        assert!(totals.conserved(), "the books do not add up: {totals:?}");
        self.check_flow(&totals);
        self.check_leaves(&totals);
        totals
    }

    /// Asserts that the leaves of proofs of liabilities are what is owed for coins, as long as no rows have been removed.
    fn check_leaves(&self, totals: &Totals) {
        let all_is_there = self.store.count::<CollectedSums>().unwrap() == 0
            && self.store.count::<ArchiveRuns>().unwrap() == 0
            && self.store.count::<Denominations>().unwrap() > 0;
        if all_is_there {
            let owed = batzen_exchange::workers::liabilities::owed_by_rows(&self.store);
            match owed {
                Ok(owed) => assert_eq!(u128::try_from(owed).unwrap(), totals.outstanding.units()),
                // A test may have a denomination in memory only.
                Err(RowsError::Missing(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Asserts that the running sums equal the sums over the rows, whether they were kept from the start or
    /// begin now.
    fn check_flow(&self, totals: &Totals) {
        let units = |sum: MoneySum| i128::try_from(sum.units()).unwrap();
        let kept = self.rules.flow.sums().unwrap();
        let fresh = MoneyFlow::default();
        assert_eq!(fresh.sums(), None);
        fresh.begin(&self.denoms, &self.store, MoneyFlow::freeze(&self.store).unwrap().as_ref()).unwrap();
        assert_eq!(Some(kept), fresh.sums());
        let sums = Sums {
            wired_in: units(totals.wired_in),
            wired_out: units(totals.wired_out),
            reserves: units(totals.reserves),
            issued: units(totals.issued),
            redeemed: units(totals.redeemed),
            deposits: units(totals.deposits),
            transient: units(totals.transient),
            in_flight: units(totals.in_flight),
            purses: units(totals.purses),
            unrevealed_melts: units(totals.unrevealed_melts),
            fees: units(totals.fees),
        };
        assert_eq!(kept, sums);
        assert_eq!(kept.surplus(), units(totals.fees) + units(totals.unrevealed_melts));
        assert_eq!(kept.difference(), 0);
    }

    pub(super) fn remaining(&self, n: u8) -> Option<Money> {
        read::coin(&self.store, coin(n)).unwrap().map(|row| row.remaining)
    }

    pub(super) fn balance(&self, n: u8) -> Money {
        read::reserve(&self.store, reserve(n)).unwrap().unwrap().balance
    }

    /// Asserts that the events in the history of a reserve add up to its balance. Returns their number.
    pub(super) fn check_reserve(&self, n: u8) -> usize {
        let statement =
            read::reserve_statement(&self.store, &self.denoms, reserve(n), None).unwrap().unwrap();
        let effects = statement.items.iter().map(ReserveHistoryItem::effect);
        assert_eq!(balance_of(Money::ZERO, effects), Some(statement.balance), "reserve {n}");
        statement.items.len()
    }

    /// A reserve with money from account `n`.
    pub(super) fn fund(&self, n: u8, bank_row: u64, amount: &str) {
        let outcome = self.ok(credits(&[(n, bank_row, amount, n, self.now())], bank_row));
        assert!(matches!(outcome, Answer::Credits(credited) if credited.booked == 1));
    }

    /// Does the aggregator's work until nothing is due.
    pub(super) fn aggregate_all(&self) {
        for round in 0.. {
            assert!(round < 100, "the aggregator does not finish");
            let now = self.rules.aggregation_time(self.now());
            let targets = self.due_targets(now);
            let mut is_done = true;
            for target in targets {
                is_done &= self.aggregate_target(target, 1_000) == Aggregated::Nothing;
            }
            if is_done {
                return;
            }
        }
    }

    /// The targets with deposits that are due.
    pub(super) fn due_targets(&self, now: Timestamp) -> Vec<DepositTarget> {
        let (targets, next) = read::due_targets(&self.store, now, &Default::default(), 10_000).unwrap();
        assert_eq!(next, None, "more deposits than a test makes");
        targets
    }

    /// Aggregates one target in parts of `part` deposits, and returns the last outcome.
    pub(super) fn aggregate_target(&self, target: DepositTarget, part: usize) -> Aggregated {
        let mut trigger = Trigger::Due;
        loop {
            let transient = read::transient(&self.store, target, account()).unwrap();
            let outcome = self.ok(Command::Aggregate(Aggregate {
                target,
                method: METHOD.to_owned(),
                account: account(),
                until: self.rules.aggregation_time(self.now()),
                deposits_max: part,
                trigger,
                complete: false,
                wtid: transient.map_or_else(Wtid::random, |row| row.wtid),
                request_uid: HashCode::random(),
                payee: read::payto(&self.store, target.h_payto).unwrap().as_deref().map(LimitedAccount::of),
            }));
            match outcome {
                Answer::Aggregate(Aggregated::Transient { more: true, .. }) => trigger = Trigger::Continued,
                Answer::Aggregate(last) => return last,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Does the transfer worker's work. Returns the account and amount of each transfer that reached the
    /// bank.
    pub(super) fn transfer_all(&self) -> Vec<(String, Money)> {
        let mut sent = Vec::new();
        for (wtid, row) in read::open_transfers(&self.store, 1_000).unwrap() {
            sent.push((read::payto(&self.store, row.h_payto).unwrap().unwrap(), row.amount));
            self.ok(Command::TransfersDone(TransfersDone { wtids: vec![wtid] }));
        }
        self.totals();
        sent
    }
}

pub(super) fn credits(rows: &[(u8, u64, &str, u8, Timestamp)], cursor: u64) -> Command {
    let credits = rows
        .iter()
        .map(|(n, bank_row, amount, sender, time)| Credit {
            bank_row: *bank_row,
            reserve_pub: reserve(*n),
            amount: m(amount),
            payto_uri: payto(*sender),
            h_payto: h_payto(*sender),
            time: *time,
        })
        .collect();
    Command::Credits(Credits { account: account(), credits, cursor, range: None })
}

/// A withdrawal of planchets: number, denomination.
pub(super) fn withdraw(n: u8, planchets: &[(u8, u32)], batch: bool) -> Command {
    let planchets = planchets
        .iter()
        .map(|(planchet, serial)| Planchet {
            denom: DenomSerial(*serial),
            h_coin_ev: ev(*planchet),
            reserve_sig: sig(*planchet),
            ev_sig: Some(ev_sig(*planchet, u8::from(batch))),
            nonce: (*serial == 3).then(|| CsNonce::from_bytes([planchet % 4; 32])),
        })
        .collect();
    Command::Withdraw(Withdraw { reserve_pub: reserve(n), planchets, batch, origin: Some(limited(n)) })
}

pub(super) fn presented(n: u8, serial: u32) -> PresentedCoin {
    PresentedCoin {
        coin_pub: coin(n),
        denom: DenomSerial(serial),
        h_age: None,
        denom_sig: DenomSignature::Rsa(vec![n]),
    }
}

/// A deposit: coins with denomination and contribution, merchant, contract, account, offsets of the refund
/// and wire deadlines in seconds.
pub(super) fn deposit(
    coins: &[(u8, u32, &str)],
    (merchant_n, contract_n, account_n): (u8, u8, u8),
    (refund_s, wire_s): (u64, u64),
) -> Deposit {
    Deposit {
        merchant_pub: merchant(merchant_n),
        h_contract_terms: contract(contract_n),
        payto_uri: payto(account_n),
        h_payto: h_payto(account_n),
        wire_salt: WireSalt::from_bytes([9; 16]),
        wallet_time: at(0),
        refund_deadline: at(refund_s),
        wire_deadline: at(wire_s),
        coins: coins
            .iter()
            .map(|(n, serial, contribution)| DepositCoin {
                coin: presented(*n, *serial),
                contribution: m(contribution),
                coin_sig: sig(*n),
            })
            .collect(),
    }
}

pub(super) fn target(merchant_n: u8, account_n: u8) -> DepositTarget {
    DepositTarget { h_payto: h_payto(account_n), merchant_pub: merchant(merchant_n) }
}

pub(super) fn deposit_key(n: u8, merchant_n: u8, contract_n: u8) -> DepositKey {
    DepositKey {
        coin_pub: coin(n),
        merchant_pub: merchant(merchant_n),
        h_contract_terms: contract(contract_n),
    }
}

pub(super) fn refund(
    (n, merchant_n, contract_n): (u8, u8, u8),
    rtransaction_id: u64,
    amount: &str,
) -> Command {
    Command::Refund(Refund {
        key: RefundKey {
            coin_pub: coin(n),
            merchant_pub: merchant(merchant_n),
            h_contract_terms: contract(contract_n),
            rtransaction_id,
        },
        amount: m(amount),
        merchant_sig: sig(1),
    })
}

pub(super) fn melt(
    n: u8,
    serial: u32,
    amount: &str,
    rc_n: u8,
    noreveal_index: u8,
    rms: Option<u8>,
) -> Command {
    Command::Melt(Melt {
        coin: presented(n, serial),
        amount: m(amount),
        rc: rc(rc_n),
        coin_sig: sig(n),
        noreveal_index,
        rms: rms.map(|rms| CsNonce::from_bytes([rms; 32])),
    })
}

/// A reveal of fresh coins: planchet number, denomination.
pub(super) fn reveal(n: u8, rc_n: u8, fresh: &[(u8, u32)], rms: Option<u8>, attempt: u8) -> Command {
    Command::Reveal(Reveal {
        coin_pub: coin(n),
        rc: rc(rc_n),
        transfer_pub: EcdhePublicKey::from_bytes([1; 32]),
        transfer_privs: [2; 64],
        rms: rms.map(|rms| CsNonce::from_bytes([rms; 32])),
        fresh: fresh
            .iter()
            .map(|(planchet, serial)| FreshCoin {
                denom: DenomSerial(*serial),
                h_coin_ev: ev(*planchet),
                link_sig: sig(*planchet),
                ev_sig: ev_sig(*planchet, attempt),
                r_pubs: None,
            })
            .collect(),
    })
}

/// An aggregation of everything that is due for a merchant's account.
pub(super) fn aggregate(merchant_n: u8, account_n: u8, wtid_n: u8) -> Aggregate {
    Aggregate {
        target: target(merchant_n, account_n),
        method: METHOD.to_owned(),
        account: account(),
        until: Timestamp::NEVER,
        deposits_max: 1_000,
        trigger: Trigger::Due,
        complete: false,
        wtid: wtid(wtid_n),
        request_uid: HashCode::random(),
        payee: Some(limited(account_n)),
    }
}

/// A closing of a reserve, back to the account that has filled it.
pub(super) fn close_reserve(reserve_pub: EddsaPublicKey, account_n: u8, wtid_n: u8) -> CloseReserve {
    CloseReserve {
        reserve_pub,
        request_time: None,
        h_payto: h_payto(account_n),
        method: METHOD.to_owned(),
        account: account(),
        wtid: wtid(wtid_n),
        request_uid: HashCode::random(),
    }
}

/// An owner's request to close a reserve to a bank account.
pub(super) fn request_close(n: u8, time_s: u64, account_n: u8) -> RequestClose {
    RequestClose {
        reserve_pub: reserve(n),
        request_time: at(time_s),
        requested: Some(h_payto(account_n)),
        h_payto: h_payto(account_n),
        payto_uri: payto(account_n),
        method: METHOD.to_owned(),
        reserve_sig: sig(n),
    }
}

/// A request for a reserve's history, for a fee.
pub(super) fn history(n: u8, time_s: u64, fee: &str) -> Command {
    let (reserve_pub, request_time, fee) = (reserve(n), at(time_s), m(fee));
    Command::ReserveHistory(ReserveHistory { reserve_pub, request_time, fee, reserve_sig: sig(n) })
}

/// A coin's part of a purse.
pub(super) fn purse_coin(n: u8, serial: u32, amount: &str) -> PurseCoin {
    PurseCoin { coin: presented(n, serial), amount: m(amount), coin_sig: sig(n) }
}

/// A purse of a payer, without fee and contract.
pub(super) fn purse(n: u8, terms: PurseTerms, coins: Vec<PurseCoin>) -> PurseCreate {
    PurseCreate { purse_pub: purse_pub(n), terms, reserve_pub: None, coins, fee: Money::ZERO, contract: None }
}

/// The contract of a purse.
pub(super) fn purse_contract(n: u8) -> Contract {
    Contract { contract_pub: key(79, n), econtract: vec![n; 40], econtract_sig: sig(n) }
}

pub(super) fn merge_row(reserve_n: u8) -> PurseMergeRow {
    PurseMergeRow {
        reserve_pub: reserve(reserve_n),
        h_payto: h_payto(reserve_n),
        merge_sig: sig(reserve_n),
        reserve_sig: sig(reserve_n),
        merge_time: at(0),
    }
}

pub(super) fn merge(n: u8, reserve_n: u8) -> Command {
    let (purse_pub, reserve_pub) = (purse_pub(n), reserve(reserve_n));
    Command::PurseMerge(PurseMerge { purse_pub, reserve_pub, merge: merge_row(reserve_n) })
}

/// A purse that a reserve asks for.
pub(super) fn reserve_purse(n: u8, reserve_n: u8, fee: Option<&str>, terms: PurseTerms) -> ReservePurse {
    ReservePurse {
        purse_pub: purse_pub(n),
        reserve_pub: reserve(reserve_n),
        terms,
        offered: fee.map(m),
        fee: fee.map_or(Money::ZERO, m),
        merge: merge_row(reserve_n),
        contract: None,
    }
}

pub(super) fn purse_delete(n: u8, reserve_n: Option<u8>, coins: &[u8]) -> Command {
    let (purse_pub, reserve_pub) = (purse_pub(n), reserve_n.map(reserve));
    let coins = coins.iter().map(|n| coin(*n)).collect();
    Command::PurseDelete(PurseDelete { purse_pub, purse_sig: sig(n), reserve_pub, coins })
}

pub(super) fn purse_expire(n: u8, reserve_n: Option<u8>, coins: &[u8]) -> Command {
    let (purse_pub, reserve_pub) = (purse_pub(n), reserve_n.map(reserve));
    let coins = coins.iter().map(|n| coin(*n)).collect();
    Command::PurseExpire(PurseExpire { purse_pub, reserve_pub, coins })
}

/// The begin of an identification.
pub(super) fn start_kyc(h_payto: PaytoHash, provider: &str, token: &str) -> Command {
    let (provider, token) = (provider.to_owned(), token.to_owned());
    Command::StartKyc(StartKyc { h_payto, provider, token })
}

/// The end of an identification, which is valid so long.
pub(super) fn finish_kyc(h_payto: PaytoHash, provider: &str, token: &str, validity: Duration) -> Command {
    Command::FinishKyc(FinishKyc {
        h_payto,
        provider: provider.to_owned(),
        token: token.to_owned(),
        provider_user_id: "u".to_owned(),
        attributes: vec![1],
        validity,
    })
}
