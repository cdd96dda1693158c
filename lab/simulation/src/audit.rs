//! The auditor's checks over the exchange's rows, at the end of a run and after recoveries.

use batzen_auditor::audit::{
    BankAccount, BankCredit, BankDebit, Confirmation, Options, Progress, Rule, Subject,
};
use batzen_protocol::Timestamp;
use batzen_store::Store;
use batzen_tables::bank::BankTransactions;
use batzen_tables::exchange::DepositKey;
use batzen_wallet::core::payment::PaymentStage;
use batzen_wallet::core::state::OpKind;

use crate::customer::Customer;
use crate::host::{Step, Stop};
use crate::keys::{EXCHANGE_ACCOUNT, EXCHANGE_URL, Keys, cents, currency, payto};
use crate::world::World;

/// Audits a world at rest: the exchange's rows against each other, the bank's and the confirmations that payers have.
pub(crate) fn whole(world: &World, now: Timestamp) -> Step {
    let (store, _) = world.exchange.store().ok_or_else(|| Stop::wrong("the exchange is down"))?;
    let (bank, _) = world.bank.books().ok_or_else(|| Stop::wrong("the bank is down"))?;
    let confirmations = world.customers.iter().flat_map(confirmations).collect();
    run(store, now, vec![account(bank, now)?], confirmations, &[])
}

/// Audits what an exchange has recovered. Its workers have yet to do what is due.
pub(crate) fn recovered(store: &Store, now: Timestamp) -> Step {
    run(store, now, Vec::new(), Vec::new(), &[Rule::PurseNotClosed, Rule::ReserveNotClosed])
}

fn run(
    store: &Store,
    now: Timestamp,
    bank: Vec<BankAccount>,
    confirmations: Vec<Confirmation>,
    late: &[Rule],
) -> Step {
    let subject = Subject {
        currency: currency(),
        master_pub: Keys::get().master_pub,
        base_url: EXCHANGE_URL.to_owned(),
        round_unit: cents(1).units(),
        auditor: None,
    };
    let options =
        Options { now, internal: true, in_order: true, threads: 1, bank, confirmations, copied: None };
    let outcome = batzen_auditor::audit::audit(store, &subject, &options, &Progress::default());
    let outcome = outcome.map_err(|error| Stop::wrong(error.to_string()))?;
    match outcome.faults().find(|finding| !late.contains(&finding.rule)) {
        Some(finding) => Err(Stop::wrong(format!("the auditor finds {finding:?}"))),
        None => Ok(()),
    }
}

/// Everything that the bank has about the exchange's account.
fn account(bank: &Store, read: Timestamp) -> Step<BankAccount> {
    let rows = bank.all::<BankTransactions>().map_err(|error| Stop::wrong(error.to_string()))?;
    let (mut credits, mut debits) = (Vec::new(), Vec::new());
    for row in rows.into_iter().map(|found| found.row) {
        let units = row.amount.units();
        if let Some(reserve_pub) = row.reserve_pub.filter(|_| row.credit_account == EXCHANGE_ACCOUNT) {
            let sender = payto(&row.debit_account);
            credits.push(BankCredit { row: row.row_id, time: row.time, units, reserve_pub, sender });
        }
        if let Some(wtid) = row.wtid.filter(|_| row.debit_account == EXCHANGE_ACCOUNT) {
            let receiver = payto(&row.credit_account);
            debits.push(BankDebit { row: row.row_id, time: row.time, units, wtid, receiver });
        }
    }
    Ok(BankAccount {
        section: "exchange-account-1".to_owned(),
        payto_uri: payto(EXCHANGE_ACCOUNT),
        credits: Some(credits),
        debits: Some(debits),
        read,
    })
}

/// The confirmations of deposits that a wallet has.
fn confirmations(customer: &Customer) -> Vec<Confirmation> {
    let mut found = Vec::new();
    for operation in customer.state.operations.values() {
        let OpKind::Payment(payment) = &operation.kind else { continue };
        let Some(time) = payment.exchange_timestamp.filter(|_| payment.stage == PaymentStage::Done) else {
            continue;
        };
        for coin in &payment.coins {
            found.push(Confirmation {
                serial: operation.id,
                deposit: DepositKey {
                    coin_pub: coin.coin_pub,
                    merchant_pub: payment.merchant_pub,
                    h_contract_terms: payment.h_contract_terms,
                },
                h_wire: payment.h_wire(),
                refund_deadline: payment.refund_deadline,
                time,
                units: coin.amount.units() - coin.fee_deposit.units(),
            });
        }
    }
    found
}
