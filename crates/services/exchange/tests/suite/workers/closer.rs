//! Closing reserves, and paying out profit.

use batzen_auditor::audit::{Check, Progress, audit};
use batzen_crypto::{EddsaPrivateKey, HashCode, Wtid};
use batzen_exchange::keys::load_or_create_eddsa;
use batzen_exchange::reads::sheet::{totals_json, totals_text};
use batzen_exchange::rules::{Command, Credits, ExecuteDrain, Management};
use batzen_protocol::hash_text;
use batzen_protocol::payto::h_payto;
use batzen_protocol::signatures::{MasterDrainProfit, SignedMessage};
use batzen_tables::exchange::{AccountId, DrainRow};

use crate::replay::audit::{options, subject};
use crate::running::credit;
use crate::workers::world::{EUR, EXPIRED, World, eur, m, our_account, payto, reserve, sum};

#[tokio::test]
async fn a_reserve_credited_after_closing_is_closed_again_under_another_identifier() {
    let w = World::new().await;
    w.add_incoming(reserve(1), "5", "42").await;
    w.wirewatch().await.unwrap();
    w.advance(EXPIRED);
    w.close().await.unwrap();
    w.transfer().await.unwrap();
    // Too little to be wired: the fee takes it all.
    w.add_incoming(reserve(1), "0.01", "43").await;
    w.wirewatch().await.unwrap();
    assert_eq!(w.close().await.unwrap().done, 0, "the new credit extends the reserve's life");
    w.advance(EXPIRED);
    assert_eq!(w.close().await.unwrap().done, 1);
    assert_eq!(w.open_transfers(), 0);
    // Amounts below the bank's smallest unit are not paid.
    w.add_incoming(reserve(1), "1.01999", "43").await;
    w.wirewatch().await.unwrap();
    w.advance(EXPIRED);
    w.close().await.unwrap();
    w.transfer().await.unwrap();
    let paid = w.outgoing().await;
    assert_eq!(paid.len(), 2);
    assert_eq!(paid[1].amount, eur("1"));
    assert!(paid[1].credit_account.contains("/42?"), "the money goes back to the first sender");
    assert_ne!(paid[0].wtid, paid[1].wtid);
    let totals = w.check().await;
    assert_eq!((totals.income.closing, totals.income.rounding), (sum("0.03"), sum("0.00999")));
    w.end().await;
}

#[tokio::test]
async fn reserves_that_cannot_be_closed_do_not_block_others() {
    let w = World::new().await;
    // More of them than fit in a page, and all at the front of the queue.
    let credits = (1..=300)
        .map(|n| {
            let payto_uri = "payto://iban/DE75512108001245126199?receiver-name=A";
            credit(n, reserve(n), m("1"), payto_uri, w.now())
        })
        .collect();
    w.submit(Command::Credits(Credits { account: our_account(), credits, cursor: 0, range: None }))
        .await
        .unwrap();
    w.advance(1);
    w.add_incoming(reserve(1_000), "2", "42").await;
    w.wirewatch().await.unwrap();
    w.advance(EXPIRED);
    for round in 0..2 {
        let progress = w.close().await.unwrap();
        assert_eq!((progress.done, progress.set_aside), (1 - round, 300));
    }
    w.transfer().await.unwrap();
    assert_eq!(w.paid().await, [("42".to_owned(), m("1.99"))]);
    assert_eq!(w.app().core.metrics.workers.reserves_set_aside.get(), Some(300));
    assert!(w.totals().conserved());
    w.exchange.shutdown().await.unwrap();
}

/// An order to pay out profit, as an older version took it: for whatever amount.
fn order(w: &World, signer: &EddsaPrivateKey, wtid: Wtid, to: &str, amount: &str) -> Command {
    let message = MasterDrainProfit {
        wtid,
        date: w.now(),
        amount: m(amount).of(EUR),
        h_section: hash_text("exchange-account-1"),
        h_payto: h_payto(to),
    };
    let row = DrainRow {
        account_section: "exchange-account-1".to_owned(),
        payto_uri: to.to_owned(),
        date: w.now(),
        amount: m(amount),
        master_sig: message.sign(signer),
        executed: false,
    };
    Command::Management(Management::Drain { wtid, row, surplus: m(amount).into(), as_of: w.key_set() })
}

#[tokio::test]
async fn profit_is_paid_out_on_a_signed_order() {
    let w = World::new().await;
    w.deposit("B", "42", &["1", "1", "1"], 0).await;
    w.aggregate().await.unwrap();
    w.transfer().await.unwrap();
    assert_eq!(w.totals().fees, m("0.31"));

    let master = master(&w);
    let order =
        |signer: &EddsaPrivateKey, wtid: Wtid, to: &str, amount: &str| order(&w, signer, wtid, to, amount);
    let [forged, elsewhere, good, unearned] = std::array::from_fn(|_| Wtid::random());
    let stranger = EddsaPrivateKey::from_bytes([7; 32]);
    w.submit(order(&stranger, forged, &payto("thief"), "0.1")).await.unwrap();
    w.submit(order(&master, elsewhere, "payto://iban/DE75512108001245126199", "0.1")).await.unwrap();
    w.submit(order(&master, good, &payto("owner"), "0.3")).await.unwrap();
    w.submit(order(&master, unearned, &payto("owner"), "0.32")).await.unwrap();
    for round in 0..2 {
        let progress = w.drain().await.unwrap();
        assert_eq!((progress.done, progress.set_aside), (1 - round, 3));
        w.transfer().await.unwrap();
    }
    let paid = w.outgoing().await;
    assert_eq!((paid.len(), paid[1].wtid, paid[1].amount), (2, good, eur("0.3")));
    assert_eq!(w.check().await.fees, m("0.01"));
    w.end().await;
}

/// Fees balance the sheet, so an exchange that has paid out customers' money must be found in other ways.
#[tokio::test]
async fn customers_money_paid_out_as_profit_is_found() {
    let w = World::new().await;
    w.deposit("B", "42", &["1", "1", "1"], 0).await;
    w.aggregate().await.unwrap();
    w.transfer().await.unwrap();
    assert!(w.totals().is_solvent());
    assert_eq!(rules_broken(&w), [] as [&str; 0]);

    // As an older version did.
    let (wtid, master) = (Wtid::random(), master(&w));
    let order = order(&w, &master, wtid, &payto("owner"), "0.5");
    let account = AccountId::of_payto(&w.app().core.config.accounts[0].payto_uri);
    let (h_payto, request_uid) = (h_payto(&payto("owner")), HashCode::from_bytes([3; 64]));
    for command in [order, ExecuteDrain { wtid, h_payto, account, request_uid }.into()] {
        w.submit(command).await.unwrap();
    }
    w.transfer().await.unwrap();
    let totals = w.totals();
    assert_eq!((totals.fees, totals.overdrawn), (m("0").into(), m("0.19").into()));
    assert!(totals.conserved() && !totals.is_solvent(), "the sheet alone does not show it");
    assert!(totals_text(&totals).contains("0.19 WAS PAID OUT AS PROFIT BEYOND WHAT WAS EARNED"));
    assert_eq!(totals_json(&totals)["solvent"], false);
    assert_eq!(rules_broken(&w), ["drain-beyond-profit", "bank-short"]);
    w.exchange.shutdown().await.unwrap();
}

/// The rules that an auditor finds broken, who has the rows only.
fn rules_broken(w: &World) -> Vec<&'static str> {
    let app = w.app();
    let (subject, options) = (subject(&app.core), options(w.now()));
    let outcome = audit(&app.core.store, &subject, &options, &Progress::default()).unwrap();
    // The coins of these tests are made up, which other checks find.
    let books = outcome.faults().filter(|finding| finding.rule.info().check == Check::Books);
    books.map(|finding| finding.rule.info().name).collect()
}

fn master(w: &World) -> EddsaPrivateKey {
    let file = &w.app().core.config.standalone.as_ref().unwrap().master_priv_file;
    load_or_create_eddsa(file).unwrap()
}
