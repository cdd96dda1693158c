//! The rules and a ledger against a naive model. Random commands under random policies must be decided alike,
//! and the books must balance after every one. Names, keys and amounts come from tiny sets, so that
//! everything collides.
use crate::common;

use std::collections::BTreeMap;

use batzen_bank::rules::{
    AbortWithdrawal, AddIncoming, Answer, Booking, Command, ConfirmWithdrawal, CreateWithdrawal, Pay, Policy,
    Refusal, Register, SelectWithdrawal, Selection, SelectionStands, Transfer,
};
use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash, Wtid};
use batzen_protocol::{Money, Timestamp};
use batzen_store::Store;
use batzen_tables::bank::{BankWithdrawals, WithdrawalKey};
use common::harness::{NOW, RulesHarness};
use proptest::prelude::*;

/// A command with small numbers for everything.
#[derive(Clone, Debug)]
enum Step {
    Register { name: u8, password: u8 },
    AddIncoming { from: u8, to: u8, amount: u8, key: u8 },
    Transfer { uid: u8, from: u8, to: u8, amount: u8, wtid: u8 },
    Pay { id: u8, from: u8, to: u8, amount: u8 },
    Create { account: u8, amount: u8 },
    Select { operation: u8, key: u8, exchange: u8 },
    Confirm { operation: u8, account: u8 },
    Abort { operation: u8, account: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let account = 0..4_u8;
    let amount = 0..4_u8;
    prop_oneof![
        (account.clone(), 0..2_u8).prop_map(|(name, password)| Step::Register { name, password }),
        (account.clone(), account.clone(), amount.clone(), 0..8_u8)
            .prop_map(|(from, to, amount, key)| Step::AddIncoming { from, to, amount, key }),
        (0..6_u8, account.clone(), account.clone(), amount.clone(), 0..2_u8)
            .prop_map(|(uid, from, to, amount, wtid)| Step::Transfer { uid, from, to, amount, wtid }),
        (0..4_u8, account.clone(), account.clone(), amount.clone())
            .prop_map(|(id, from, to, amount)| Step::Pay { id, from, to, amount }),
        (account.clone(), amount).prop_map(|(account, amount)| Step::Create { account, amount }),
        (0..6_u8, 0..8_u8, account.clone()).prop_map(|(operation, key, exchange)| Step::Select {
            operation,
            key,
            exchange
        }),
        (0..6_u8, account.clone()).prop_map(|(operation, account)| Step::Confirm { operation, account }),
        (0..6_u8, account).prop_map(|(operation, account)| Step::Abort { operation, account }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    (0..3_u64, prop::option::of(0..6_u64), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(bonus, limit, lenient, repeats, known)| Policy {
            signup_bonus: money(bonus),
            debt_limit: limit.map(money),
            create_accounts: lenient,
            allow_same_account: lenient,
            allow_repeated_reserve_pub: repeats,
            exchange_accounts: None,
            allow_known_account: known,
        },
    )
}

fn money(value: u64) -> Money {
    Money::new(value, 0).unwrap()
}

fn name(account: u8) -> String {
    format!("account-{account}")
}

fn key(byte: u8) -> EddsaPublicKey {
    EddsaPublicKey::from_bytes([byte; 32])
}

#[derive(Clone, Debug, Default)]
struct Withdrawal {
    account: u8,
    amount: u8,
    selection: Option<(u8, u8)>,
    reserved: bool,
    aborted: bool,
    row_id: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
struct Paid {
    row_id: u64,
    request: (u8, u8, u8, u8),
}

/// The naive bank.
#[derive(Clone, Debug, Default)]
struct Model {
    balances: BTreeMap<u8, i64>,
    passwords: BTreeMap<u8, u8>,
    bonuses: i64,
    rows: u64,
    used_keys: Vec<u8>,
    paid: BTreeMap<u8, Paid>,
    payments: BTreeMap<u8, Paid>,
    operations: BTreeMap<u8, Withdrawal>,
}

impl Model {
    fn known(&self, account: u8) -> Result<(), Refusal> {
        if self.balances.contains_key(&account) {
            Ok(())
        } else {
            Err(Refusal::UnknownAccount(name(account)))
        }
    }

    fn fresh(&self, policy: &Policy, key: u8) -> Result<(), Refusal> {
        let used = self.used_keys.contains(&key) && !policy.allow_repeated_reserve_pub;
        if used { Err(Refusal::DuplicateReservePub) } else { Ok(()) }
    }

    /// Returns whether an account could be debited. Reserved amounts count as spent.
    fn affords(&self, policy: &Policy, account: u8, amount: u8) -> bool {
        let reserved: i64 = self
            .operations
            .values()
            .map(|o| i64::from(o.reserved && o.account == account) * i64::from(o.amount))
            .sum();
        let balance = self.balances.get(&account).copied().unwrap_or_default() - reserved - i64::from(amount);
        policy.debt_limit.is_none_or(|limit| -balance <= i64::try_from(limit.value()).unwrap())
    }

    fn pay(&mut self, policy: &Policy, from: u8, to: u8, amount: u8) -> Result<u64, Refusal> {
        if from == to && !policy.allow_same_account {
            return Err(Refusal::SameAccount);
        }
        if !policy.create_accounts {
            self.known(from)?;
            self.known(to)?;
        }
        if from != to && !self.affords(policy, from, amount) {
            return Err(Refusal::UnallowedDebit);
        }
        *self.balances.entry(from).or_default() -= i64::from(amount);
        *self.balances.entry(to).or_default() += i64::from(amount);
        self.rows += 1;
        Ok(self.rows)
    }

    fn own(&self, operation: u8, account: u8) -> Result<Withdrawal, Refusal> {
        let found = self.operations.get(&operation).cloned().ok_or(Refusal::UnknownWithdrawal)?;
        self.known(account)?;
        if found.account == account { Ok(found) } else { Err(Refusal::UnknownWithdrawal) }
    }

    /// Decides a command; `resolved` is the selection that the confirming client read before the batch.
    fn decide(
        &mut self,
        policy: &Policy,
        step: &Step,
        resolved: Option<(u8, u8)>,
        now: Timestamp,
    ) -> Result<Answer, Refusal> {
        match *step {
            Step::Register { name: account, password } => match self.passwords.get(&account) {
                _ if !policy.allow_known_account && self.known(account).is_ok() => {
                    Err(Refusal::RegisterConflict)
                }
                Some(known) if *known == password => Ok(Answer::Registered),
                Some(_) => Err(Refusal::RegisterConflict),
                None => {
                    let bonus = i64::try_from(policy.signup_bonus.value()).unwrap();
                    self.passwords.insert(account, password);
                    *self.balances.entry(account).or_default() += bonus;
                    self.bonuses += bonus;
                    Ok(Answer::Registered)
                }
            },
            Step::AddIncoming { from, to, amount, key } => {
                self.fresh(policy, key)?;
                let row_id = self.pay(policy, from, to, amount)?;
                self.used_keys.push(key);
                Ok(Answer::Booked(Booking { row_id, time: now }))
            }
            Step::Transfer { uid, from, to, amount, wtid } => {
                let request = (from, to, amount, wtid);
                if let Some(paid) = self.paid.get(&uid) {
                    let same = paid.request == request;
                    let done = Answer::Booked(Booking { row_id: paid.row_id, time: now });
                    return if same { Ok(done) } else { Err(Refusal::RequestUidReused) };
                }
                let row_id = self.pay(policy, from, to, amount)?;
                self.paid.insert(uid, Paid { row_id, request });
                Ok(Answer::Booked(Booking { row_id, time: now }))
            }
            Step::Pay { id, from, to, amount } => {
                let request = (from, to, amount, 0);
                if let Some(paid) = self.payments.get(&id) {
                    let same = paid.request == request;
                    let done = Answer::Booked(Booking { row_id: paid.row_id, time: now });
                    return if same { Ok(done) } else { Err(Refusal::RequestUidReused) };
                }
                if from == to {
                    return Err(Refusal::SameAccount);
                }
                self.known(to)?;
                let row_id = self.pay(policy, from, to, amount)?;
                self.payments.insert(id, Paid { row_id, request });
                Ok(Answer::Booked(Booking { row_id, time: now }))
            }
            Step::Create { account, amount } => {
                self.known(account)?;
                let id = u8::try_from(self.operations.len()).unwrap();
                self.operations.insert(id, Withdrawal { account, amount, ..Withdrawal::default() });
                Ok(Answer::WithdrawalCreated)
            }
            Step::Select { operation, key, exchange } => {
                let found = self.operations.get(&operation).cloned().ok_or(Refusal::UnknownWithdrawal)?;
                if let Some(selection) = found.selection {
                    let transfer_done = found.row_id.is_some();
                    let same = selection == (key, exchange);
                    return if same {
                        Ok(Answer::WithdrawalSelected(SelectionStands { transfer_done }))
                    } else {
                        Err(Refusal::SelectionConflict)
                    };
                }
                self.known(exchange)?;
                self.fresh(policy, key)?;
                let Withdrawal { account, amount, aborted, .. } = found;
                let reserved = !aborted && account != exchange && self.affords(policy, account, amount);
                let selection = Some((key, exchange));
                self.operations.insert(operation, Withdrawal { selection, reserved, ..found });
                Ok(Answer::WithdrawalSelected(SelectionStands { transfer_done: false }))
            }
            Step::Confirm { operation, account } => {
                let found = self.own(operation, account)?;
                if found.selection != resolved {
                    return Err(Refusal::Unresolved);
                }
                let (key, exchange) = found.selection.ok_or(Refusal::SelectionRequired)?;
                if found.aborted {
                    return Err(Refusal::ConfirmAfterAbort);
                }
                if found.row_id.is_none() {
                    self.fresh(policy, key)?;
                    // The reserved amount is there.
                    let released = Withdrawal { reserved: false, ..found };
                    self.operations.insert(operation, released.clone());
                    let row_id = self.pay(policy, account, exchange, released.amount)?;
                    self.used_keys.push(key);
                    self.operations.insert(operation, Withdrawal { row_id: Some(row_id), ..released });
                }
                Ok(Answer::WithdrawalConfirmed { exchange_account: name(exchange) })
            }
            Step::Abort { operation, account } => {
                let found = self.own(operation, account)?;
                if found.row_id.is_some() {
                    return Err(Refusal::AbortAfterConfirm);
                }
                self.operations.insert(operation, Withdrawal { aborted: true, reserved: false, ..found });
                Ok(Answer::WithdrawalAborted)
            }
        }
    }
}

/// Translates a step for the rules, with the confirming client's earlier read. `serial` makes unique ids,
/// like the service.
fn command(store: &Store, model: &Model, step: &Step, serial: &mut u64) -> (Command, Option<(u8, u8)>) {
    let created = model.operations.len();
    *serial += 1;
    let id = |operation: u8| [operation + 1; 32];
    let mut resolved = None;
    let command = match *step {
        Step::Register { name: account, password } => Command::Register(Register {
            name: name(account),
            password_hash: ShortHash::from_bytes([password; 32]),
        }),
        Step::AddIncoming { from, to, amount, key: k } => {
            let mut id = [0xaa; 32];
            id[..8].copy_from_slice(&serial.to_be_bytes());
            Command::AddIncoming(AddIncoming {
                id,
                debit_account: name(from),
                credit_account: name(to),
                amount: money(amount.into()),
                reserve_pub: key(k),
            })
        }
        Step::Transfer { uid, from, to, amount, wtid } => Command::Transfer(Transfer {
            request_uid: HashCode::from_bytes([uid; 64]),
            debit_account: name(from),
            credit_account: name(to),
            amount: money(amount.into()),
            wtid: Wtid::from_bytes([wtid; 32]),
            exchange_base_url: format!("http://exchange-{serial}/"),
        }),
        Step::Pay { id, from, to, amount } => Command::Pay(Pay {
            id: [id; 16],
            debit_account: name(from),
            credit_account: name(to),
            amount: money(amount.into()),
            text: String::new(),
            reserve_pub: None,
        }),
        Step::Create { account, amount } => Command::CreateWithdrawal(CreateWithdrawal {
            wopid: id(u8::try_from(created).unwrap()),
            account: name(account),
            amount: money(amount.into()),
        }),
        Step::Select { operation, key: k, exchange } => Command::SelectWithdrawal(SelectWithdrawal {
            wopid: id(operation),
            reserve_pub: key(k),
            exchange_account: name(exchange),
        }),
        Step::Confirm { operation, account } => {
            let wopid = id(operation);
            let row = store.get::<BankWithdrawals>(&WithdrawalKey { wopid }).unwrap();
            let selection = row.and_then(|stored| Selection::of(&stored.row));
            resolved = model.operations.get(&operation).and_then(|operation| operation.selection);
            assert_eq!(selection.is_some(), resolved.is_some());
            Command::ConfirmWithdrawal(ConfirmWithdrawal { wopid, account: name(account), selection })
        }
        Step::Abort { operation, account } => {
            Command::AbortWithdrawal(AbortWithdrawal { wopid: id(operation), account: name(account) })
        }
    };
    (command, resolved)
}

fn run(policy: &Policy, steps: &[Step]) {
    let harness = RulesHarness::new(policy.clone());
    let now = NOW;
    let mut model = Model::default();
    let mut serial = 0;
    for step in steps {
        let (command, resolved) = command(&harness.store, &model, step, &mut serial);
        let verdict = harness.execute(command);
        assert_eq!(verdict, model.decide(policy, step, resolved, now), "{step:?} with {model:?}");
        let totals = harness.check();
        for account in &totals.accounts {
            let (negative, size) = account.balance();
            let size = i64::try_from(size.value()).unwrap();
            let balance = if negative { -size } else { size };
            let expected = match account.name.strip_prefix("account-") {
                Some(number) => model.balances[&number.parse::<u8>().unwrap()],
                None => -model.bonuses,
            };
            assert_eq!(balance, expected, "{}", account.name);
        }
        assert_eq!(model.balances.values().sum::<i64>(), model.bonuses);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rules_and_ledger_agree_with_the_model(policy in policy(), steps in prop::collection::vec(step(), 1..60)) {
        run(&policy, &steps);
    }
}
