//! The comparison with the bank, a step at a time, gives what a comparison of everything gives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use batzen_auditor::audit::{
    AuditOutcome, BankAccount, BankCredit, BankDebit, Check, Confirmation, Finding, Options, Progress,
    RowChange, Subject, Verdict, audit,
};
use batzen_auditor::live::{Asked, Live};
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode, WireSalt, Wtid};
use batzen_protocol::payto::{h_payto, h_wire};
use batzen_protocol::signatures::{MasterWireDetails, SignedMessage};
use batzen_protocol::{Duration, Timestamp};
use batzen_store::memory::MemoryBackend;
use batzen_store::{Backend, ChangeSet, CommitOutcome, Result, Store, StoreError};
use batzen_tables::auditor::results::{AuditOpenConfirmations, AuditOpenCredits};
use batzen_tables::exchange::{
    AccountId, AccountKey, CollectedKey, CollectedRow, CollectedSums, CollectedTerm, CursorRow, Cursors,
    DenomSerial, DepositKey, DepositRow, Deposits, Prepared, PreparedRow, ReserveInKey, ReserveInRow,
    ReserveKey, ReserveRow, Reserves, ReservesIn, TransferKind, WireAccountRow, WireAccounts, WireOut,
    WireOutRow, WireTargetKey, WireTargetRow, WireTargets, WtidKey,
};

use crate::live::{Copy, NOW, change, money, options};

const ACCOUNT: &str = "payto://x-taler-bank/localhost/exchange?receiver-name=Exchange";
const CUSTOMER: &str = "payto://x-taler-bank/localhost/customer?receiver-name=Customer";
const SHOP: &str = "payto://x-taler-bank/localhost/shop?receiver-name=Shop";
/// Long before everything is compared.
const EARLY: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A generator of numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

fn number(kind: u8, n: u64) -> [u8; 32] {
    let mut bytes = [kind; 32];
    bytes[..8].copy_from_slice(&n.to_be_bytes());
    bytes
}

/// A store whose process is killed by one of its commits, before or after that is durable. Then no commit succeeds.
struct Mortal {
    inner: MemoryBackend,
    life: Arc<Life>,
}

#[derive(Default)]
struct Life {
    /// Number of commits that succeed before it ends; `None`: all.
    commits_left: Mutex<Option<(u64, bool)>>,
}

impl Life {
    fn is_over(&self) -> bool {
        matches!(*self.commits_left.lock().unwrap(), Some((0, _)))
    }
}

impl Backend for Mortal {
    batzen_store::delegate_reads!(self, self.inner);

    fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        let killed = || Err(StoreError::Unavailable("killed".to_owned()));
        let mut left = self.life.commits_left.lock().unwrap();
        match &mut *left {
            None => {}
            Some((0, _)) => return killed(),
            Some((commits, is_durable)) => {
                *commits -= 1;
                if *commits == 0 {
                    if *is_durable {
                        assert_eq!(self.inner.commit(changes)?, CommitOutcome::Committed);
                    }
                    return killed();
                }
            }
        }
        self.inner.commit(changes)
    }
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// An exchange, its bank, and the auditor of both.
struct Town {
    copy: Copy,
    live: Live,
    life: Arc<Life>,
    kills: u32,
    credits: Vec<BankCredit>,
    debits: Vec<BankDebit>,
    booked: BTreeMap<u64, (ReserveInKey, ReserveInRow)>,
    transfers: BTreeMap<u64, (WireOutRow, PreparedRow)>,
    cursor: u64,
    collected: u128,
    /// Reserves that were removed with their transfers.
    gone: BTreeSet<u64>,
}

impl Town {
    fn new() -> Self {
        let life = Arc::new(Life::default());
        let store = Mortal { inner: MemoryBackend::new(), life: Arc::clone(&life) };
        let mut copy = Copy::on(Store::new(store));
        let mut live = copy.live();
        let target = |uri: &str| {
            let row = WireTargetRow { payto_uri: uri.to_owned() };
            change::<WireTargets>(&WireTargetKey { h_payto: h_payto(uri) }, None, Some(&row))
        };
        copy.apply(&mut live, vec![target(CUSTOMER), target(SHOP)]);
        Self {
            copy,
            live,
            life,
            kills: 0,
            credits: Vec::new(),
            debits: Vec::new(),
            booked: BTreeMap::new(),
            transfers: BTreeMap::new(),
            cursor: 0,
            collected: 0,
            gone: BTreeSet::new(),
        }
    }

    fn apply(&mut self, changes: Vec<RowChange>) {
        self.copy.apply(&mut self.live, changes);
    }

    fn reserve(n: u64) -> (ReserveKey, ReserveRow) {
        let row =
            ReserveRow { balance: money(0), expiration: EARLY, gc: EARLY, origin: Some(h_payto(CUSTOMER)) };
        (ReserveKey { reserve_pub: EddsaPublicKey::from_bytes(number(5, n)) }, row)
    }

    /// The bank gets a transfer for the exchange.
    fn receive(&mut self) {
        let row = self.credits.len() as u64 + 1;
        let reserve_pub = EddsaPublicKey::from_bytes(number(5, row));
        self.credits.push(BankCredit {
            row,
            time: EARLY,
            units: u128::from(row) * 10,
            reserve_pub,
            sender: CUSTOMER.to_owned(),
        });
    }

    /// The exchange books the next transfer, or one that the bank does not have.
    fn book(&mut self, dice: &mut Dice) {
        let n = self.cursor + 1;
        let mut units = u128::from(n) * 10;
        if n > self.credits.len() as u64 {
            if dice.below(4) > 0 {
                return;
            }
        } else if dice.below(12) == 0 {
            // It is passed over.
            self.advance_cursor(Vec::new());
            return;
        }
        let mut key = ReserveInKey {
            reserve_pub: EddsaPublicKey::from_bytes(number(5, n)),
            account: AccountId::of_payto(ACCOUNT),
            bank_row: n,
        };
        let mut row = ReserveInRow { amount: money(units), h_payto: h_payto(CUSTOMER), time: EARLY };
        match dice.below(16) {
            0 => {
                units += 1;
                row.amount = money(units);
            }
            1 => row.h_payto = h_payto(SHOP),
            2 => row.time = NOW,
            3 => key.reserve_pub = EddsaPublicKey::from_bytes(number(6, n)),
            _ => {}
        }
        let (reserve_key, reserve) = Self::reserve(n);
        let changes = vec![
            change::<Reserves>(&reserve_key, None, Some(&reserve)),
            change::<ReservesIn>(&key, None, Some(&row)),
        ];
        self.booked.insert(n, (key, row));
        self.advance_cursor(changes);
    }

    fn advance_cursor(&mut self, mut changes: Vec<RowChange>) {
        let key = AccountKey { account: AccountId::of_payto(ACCOUNT) };
        let old = (self.cursor > 0).then_some(CursorRow { bank_row: self.cursor });
        self.cursor += 1;
        let new = CursorRow { bank_row: self.cursor };
        changes.push(change::<Cursors>(&key, old.as_ref(), Some(&new)));
        self.apply(changes);
    }

    /// Somebody changes or removes a row of a transfer that was booked.
    fn tamper_with_credit(&mut self, dice: &mut Dice) {
        let Some(n) = self.booked.keys().nth(dice.below(self.booked.len().max(1) as u64) as usize).copied()
        else {
            return;
        };
        let (key, old) = self.booked[&n].clone();
        if dice.below(3) == 0 {
            self.booked.remove(&n);
            self.apply(vec![change::<ReservesIn>(&key, Some(&old), None)]);
            return;
        }
        let right = u128::from(n) * 10;
        // The next time, it is put right.
        let units = if old.amount.units() == right { right + 3 } else { right };
        let new = ReserveInRow { amount: money(units), ..old.clone() };
        self.apply(vec![change::<ReservesIn>(&key, Some(&old), Some(&new))]);
        self.booked.insert(n, (key, new));
    }

    /// The exchange removes an old reserve.
    fn collect(&mut self) {
        let is_right = |n: u64, row: &ReserveInRow| {
            row.amount.units() == u128::from(n) * 10 && row.h_payto == h_payto(CUSTOMER) && row.time == EARLY
        };
        let bank_rows = self.credits.len() as u64;
        let found = self.booked.iter().find(|(n, (key, row))| {
            **n <= bank_rows && is_right(**n, row) && key.reserve_pub.as_bytes()[8] == 5
        });
        let Some((n, (key, row))) = found.map(|(n, rows)| (*n, rows.clone())) else { return };
        let (reserve_key, reserve) = Self::reserve(n);
        let sum = CollectedKey { term: CollectedTerm::WiredIn };
        let old = (self.collected > 0).then_some(CollectedRow { units: self.collected });
        self.collected += row.amount.units();
        let new = CollectedRow { units: self.collected };
        self.apply(vec![
            change::<ReservesIn>(&key, Some(&row), None),
            change::<Reserves>(&reserve_key, Some(&reserve), None),
            change::<CollectedSums>(&sum, old.as_ref(), Some(&new)),
        ]);
        self.booked.remove(&n);
        self.gone.insert(n);
    }

    /// The exchange decides a transfer.
    fn decide(&mut self) {
        let n = self.transfers.len() as u64 + 1;
        let (wtid, account) = (Wtid::from_bytes(number(7, n)), AccountId::of_payto(ACCOUNT));
        let amount = money(u128::from(n) * 7);
        let decision = WireOutRow {
            time: EARLY,
            h_payto: h_payto(SHOP),
            merchant_pub: EddsaPublicKey::from_bytes([8; 32]),
            account,
            amount,
            wire_fee: money(0),
        };
        let order = PreparedRow {
            kind: TransferKind::Aggregate,
            account,
            request_uid: HashCode::from_bytes([n as u8; 64]),
            amount,
            h_payto: h_payto(SHOP),
            exchange_base_url: self.copy.subject.base_url.clone(),
            time: EARLY,
            finished: None,
            failed: None,
        };
        let key = WtidKey { wtid };
        self.apply(vec![
            change::<WireOut>(&key, None, Some(&decision)),
            change::<Prepared>(&key, None, Some(&order)),
        ]);
        self.transfers.insert(n, (decision, order));
    }

    /// The bank executes a transfer: as it should, otherwise, twice, or one that nobody ordered.
    fn pay(&mut self, dice: &mut Dice) {
        let n = 1 + dice.below(self.transfers.len() as u64 + 2);
        let mut debit = BankDebit {
            row: self.debits.len() as u64 + 1,
            time: EARLY,
            units: u128::from(n) * 7,
            wtid: Wtid::from_bytes(number(7, n)),
            receiver: SHOP.to_owned(),
        };
        let is_new = self.debits.iter().all(|other| other.wtid != debit.wtid);
        if !is_new && dice.below(4) > 0 {
            return;
        }
        match dice.below(12) {
            0 => debit.units += 1,
            1 => debit.receiver = CUSTOMER.to_owned(),
            2 => debit.time = NOW,
            _ => {}
        }
        self.debits.push(debit);
    }

    /// The exchange notes that the bank has executed a transfer, or changes what it decided.
    fn change_transfer(&mut self, dice: &mut Dice) {
        let n = 1 + dice.below(self.transfers.len() as u64 + 1);
        let Some((decision, order)) = self.transfers.get(&n).cloned() else { return };
        let key = WtidKey { wtid: Wtid::from_bytes(number(7, n)) };
        if dice.below(4) == 0 {
            let new = WireOutRow {
                amount: money(u128::from(n) * 7 + u128::from(dice.below(2))),
                ..decision.clone()
            };
            self.apply(vec![change::<WireOut>(&key, Some(&decision), Some(&new))]);
            self.transfers.insert(n, (new, order));
        } else {
            let finished = if order.finished.is_none() { Some(EARLY) } else { None };
            let new = PreparedRow { finished, ..order.clone() };
            self.apply(vec![change::<Prepared>(&key, Some(&order), Some(&new))]);
            self.transfers.insert(n, (decision, new));
        }
    }

    /// The bank's totals after these rows.
    fn bank(&self, [credit, debit]: [u64; 2]) -> BankAccount {
        BankAccount {
            section: "exchange-account-1".to_owned(),
            payto_uri: ACCOUNT.to_owned(),
            credits: Some(self.credits.iter().filter(|row| row.row > credit).cloned().collect()),
            debits: Some(self.debits.iter().filter(|row| row.row > debit).cloned().collect()),
            read: NOW,
        }
    }

    fn options(&self, since: [u64; 2]) -> Options {
        Options { bank: vec![self.bank(since)], ..options(NOW, Some(NOW)) }
    }

    /// The auditor is killed in the middle of a comparison, or of a check of all rows, and starts again.
    fn kill(&mut self, dice: &mut Dice) {
        *self.life.commits_left.lock().unwrap() = Some((1 + dice.below(6), dice.below(2) == 0));
        let Copy { store, subject, .. } = &self.copy;
        if dice.below(2) == 0 {
            let checked = Live::check_all(store, subject, 1, NOW, &Progress::default());
            assert_eq!(checked.is_err(), self.life.is_over());
        } else {
            let rows = self.live.since().unwrap().bank;
            let rows = rows.get(&AccountId::of_payto(ACCOUNT)).copied().unwrap_or_default();
            let (options, asked) = (self.options(rows), Asked { bank: true, merchants: false });
            let compared = self.live.compare(&options, asked, &Progress::default());
            assert_eq!(compared.is_err(), self.life.is_over());
        }
        self.kills += u32::from(self.life.is_over());
        *self.life.commits_left.lock().unwrap() = None;
        let Copy { store, subject, .. } = &self.copy;
        let check_all = || Live::check_all(store, subject, 1, NOW, &Progress::default()).unwrap();
        self.live = Live::open(store, subject, 1).unwrap().unwrap_or_else(check_all);
    }

    /// Compares a step at a time and everything.
    #[track_caller]
    fn compare(&mut self, what: &str) {
        let since = self.live.since().unwrap();
        let rows = since.bank.get(&AccountId::of_payto(ACCOUNT)).copied().unwrap_or_default();
        let options = self.options(rows);
        let read = options.bank[0].credits.iter().flatten().count()
            + options.bank[0].debits.iter().flatten().count();
        let asked = Asked { bank: true, merchants: false };
        let step = self.live.compare(&options, asked, &Progress::default()).unwrap();
        let options = self.options([0; 2]);
        let whole = audit(&self.copy.store, &self.copy.subject, &options, &Progress::default()).unwrap();
        let (mut step_wire, mut whole_wire) = (wire(&step), wire(&whole));
        if self.collected > 0 {
            // Of those that it misses, a whole comparison cannot tell which were removed by right.
            let is_unbooked = |finding: &String| finding.starts_with("credit-unbooked");
            assert_eq!(
                step_wire.iter().any(is_unbooked),
                whole_wire.iter().any(is_unbooked),
                "{what}: {step_wire:#?} {whole_wire:#?}"
            );
            step_wire.retain(|finding| !is_unbooked(finding));
            whole_wire.retain(|finding| !is_unbooked(finding));
        }
        assert_eq!(step_wire, whole_wire, "{what}, {read} rows read");
        assert_eq!(step.accounts, whole.accounts, "{what}");
    }
}

fn wire(outcome: &AuditOutcome) -> BTreeSet<String> {
    let is_wire = |finding: &&Finding| finding.rule.info().check == Check::Wire;
    outcome
        .findings
        .iter()
        .filter(is_wire)
        .map(|finding| {
            format!(
                "{} {:?} {} {} {}",
                finding.rule.info().name,
                finding.row.key,
                finding.subject,
                finding.exchange,
                finding.auditor
            )
        })
        .collect()
}

#[test]
fn a_comparison_in_steps_gives_what_one_of_everything_gives() {
    let (mut found, mut kills) = (BTreeSet::new(), 0);
    for seed in 0..200 {
        let mut dice = Dice(seed);
        let mut town = Town::new();
        for step in 0..80 {
            match dice.below(16) {
                0..=2 => town.receive(),
                3..=5 => town.book(&mut dice),
                6 => town.tamper_with_credit(&mut dice),
                7 if seed % 2 == 0 => town.collect(),
                7 | 8 => town.decide(),
                9 | 10 => town.pay(&mut dice),
                11 => town.change_transfer(&mut dice),
                12 if dice.below(8) == 0 => {
                    // Everything is checked again.
                    let Copy { store, subject, .. } = &town.copy;
                    town.live = Live::check_all(store, subject, 1, NOW, &Progress::default()).unwrap();
                }
                13 if seed % 3 == 0 => town.kill(&mut dice),
                _ => town.compare(&format!("seed {seed}, step {step}")),
            }
        }
        town.compare(&format!("seed {seed}, at the end"));
        kills += town.kills;
        found.extend(town.copy.findings().into_iter().map(|kept| kept.row.rule));
    }
    // What it is about has happened.
    assert!(kills > 20, "{kills}");
    for rule in [
        "credit-unbooked",
        "credit-invented",
        "credit-amount",
        "credit-sender",
        "credit-date",
        "credit-subject",
        "debit-unjustified",
        "debit-twice",
        "debit-amount",
        "debit-receiver",
        "debit-missing",
        "debit-waiting",
    ] {
        assert!(found.contains(rule), "{rule} is not in {found:?}");
    }
}

#[test]
fn the_verdict_claims_no_more_than_was_checked() {
    let mut town = Town::new();
    let master = EddsaPrivateKey::generate();
    let h_wire_details = h_payto(ACCOUNT);
    let account = WireAccountRow {
        payto_uri: ACCOUNT.to_owned(),
        master_sig: MasterWireDetails { h_wire_details }.sign(&master),
        last_change: EARLY,
        enabled: true,
    };
    town.apply(vec![change::<WireAccounts>(
        &WireTargetKey { h_payto: h_wire_details },
        None,
        Some(&account),
    )]);
    let subject = Subject { master_pub: master.public_key(), ..town.copy.subject.clone() };
    let audited =
        |town: &Town, options: &Options| audit(&town.copy.store, &subject, options, &Progress::default());

    let mut options = town.options([0; 2]);
    options.bank.clear();
    let outcome = audited(&town, &options).unwrap();
    assert_eq!((outcome.verdict(), outcome.unread), (Verdict::BankUnread, vec![ACCOUNT.to_owned()]));
    let mut options = town.options([0; 2]);
    options.bank[0].debits = None;
    assert_eq!(audited(&town, &options).unwrap().verdict(), Verdict::BankUnread);
    assert_eq!(audited(&town, &town.options([0; 2])).unwrap().verdict(), Verdict::Right);

    // A transfer that nothing explains is shown at once, and is a finding when no row can be on its way any more.
    let wtid = Wtid::from_bytes([9; 32]);
    town.debits.push(BankDebit { row: 1, time: NOW, units: 500, wtid, receiver: SHOP.to_owned() });
    let outcome = audited(&town, &town.options([0; 2])).unwrap();
    assert_eq!(outcome.verdict(), Verdict::Pending { count: 1, units: 500 });
    let pending = &outcome.findings[0];
    assert_eq!((pending.rule.info().name, pending.detail.as_str()), ("debit-pending", SHOP));
    town.debits[0].time = EARLY;
    let outcome = audited(&town, &town.options([0; 2])).unwrap();
    assert_eq!(outcome.verdict(), Verdict::Wrong);
    let faults: Vec<&str> = outcome.faults().map(|finding| finding.rule.info().name).collect();
    assert_eq!(faults, ["debit-unjustified", "bank-short"]);
}

#[test]
fn only_what_is_open_is_compared_again() {
    let mut town = Town::new();
    (0..10).for_each(|_| town.receive());
    let mut dice = Dice(1);
    while town.booked.len() < 3 {
        town.book(&mut dice);
    }
    town.compare("first");
    let open = |town: &Town| town.copy.store.all::<AuditOpenCredits>().unwrap().len();
    let first = open(&town);
    assert!((1..=9).contains(&first), "{first}");
    town.compare("second");
    assert_eq!(open(&town), first);
    let since = town.live.since().unwrap();
    assert_eq!(since.bank[&AccountId::of_payto(ACCOUNT)], [10, 0]);
}

#[test]
fn a_confirmation_is_open_until_its_deposit_is_there() {
    let mut town = Town::new();
    let salt = WireSalt::from_bytes([9; 16]);
    let confirmation = Confirmation {
        serial: 4,
        deposit: DepositKey {
            coin_pub: EddsaPublicKey::from_bytes([1; 32]),
            merchant_pub: EddsaPublicKey::from_bytes([2; 32]),
            h_contract_terms: HashCode::from_bytes([3; 64]),
        },
        h_wire: h_wire(SHOP, &salt),
        refund_deadline: EARLY,
        time: EARLY,
        units: 5,
    };
    let missing = |town: &mut Town, confirmations: Vec<Confirmation>, now: Timestamp| {
        let options = Options { bank: Vec::new(), confirmations, now, ..town.options([0; 2]) };
        let asked = Asked { bank: false, merchants: true };
        let outcome = town.live.compare(&options, asked, &Progress::default()).unwrap();
        outcome.findings.iter().filter(|finding| finding.rule.info().name == "deposit-missing").count()
    };
    assert_eq!(missing(&mut town, vec![confirmation.clone()], NOW), 1);
    assert_eq!(town.live.since().unwrap().confirmation, 4);
    // It is not sent again.
    assert_eq!(missing(&mut town, Vec::new(), NOW.saturating_add(Duration::from_secs(1))), 1);
    let deposit = DepositRow {
        denom: DenomSerial(1),
        amount: money(5),
        wallet_time: EARLY,
        exchange_time: EARLY,
        refund_deadline: EARLY,
        wire_deadline: EARLY,
        wire_salt: salt,
        h_payto: h_payto(SHOP),
        coin_sig: EddsaSignature::from_bytes([0; 64]),
        refunded: money(0),
        wtid: None,
    };
    town.apply(vec![change::<Deposits>(&confirmation.deposit, None, Some(&deposit))]);
    assert_eq!(missing(&mut town, Vec::new(), NOW), 0);
    let open = town.copy.store.all::<AuditOpenConfirmations>().unwrap();
    assert!(open.is_empty(), "{open:?}");
}
