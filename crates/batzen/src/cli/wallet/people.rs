//! `batzen wallet send`, `request`, `decline`, and `accept` for payments between people.

use std::time::Duration;

use batzen_wallet::core::OpId;
use batzen_wallet::core::purse::payment as purse_payment;
use batzen_wallet::core::views::describe_fees;
use batzen_wallet::{Direction, PeerPayment, PeerRequest, Status, Wallet, WalletError};
use serde_json::json;

use super::args::{AcceptArgs, PeerArgs};
use super::errors::EXIT_PENDING;
use super::inputs;
use super::money::{available, usable_exchange};
use super::output::{Output, date};

fn wanted(wallet: &Wallet, args: &PeerArgs) -> anyhow::Result<PeerRequest> {
    Ok(PeerRequest {
        exchange: args.exchange.as_deref().map(inputs::exchange_url).transpose()?,
        amount: inputs::amount(&args.amount)?,
        summary: args.summary.clone(),
        expiration: wallet.now().saturating_add(args.expires),
        min_age: args.min_age,
    })
}

/// Words about a minimum age; empty if there is none.
fn age_words(min_age: u32) -> String {
    if min_age == 0 { String::new() } else { format!(", from people of {min_age} or more") }
}

pub(super) async fn send(wallet: &Wallet, args: &PeerArgs, yes: bool, output: &Output) -> anyhow::Result<u8> {
    let request = wanted(wallet, args)?;
    let (now, amount) = (wallet.now(), request.amount);
    let (exchange, plan) = wallet
        .with_state(|state| {
            let base_url = match &request.exchange {
                Some(base_url) => base_url.clone(),
                None => purse_payment::cheapest(state, amount, request.min_age, now)?,
            };
            let plan = purse_payment::preview(state, &base_url, amount, request.min_age, now)?;
            Ok((state.exchange(&base_url)?.clone(), plan))
        })
        .map_err(WalletError::Core)?;
    output.note(&format!(
        "Whoever gets the link receives {amount}; on top {}. It expires {}.",
        describe_fees(&[
            ("deposit", exchange.amount(plan.fees)),
            ("change", exchange.amount(plan.change_cost))
        ]),
        date(request.expiration)
    ));
    output.confirm("Send?", yes)?;
    let request = PeerRequest { exchange: Some(exchange.base_url), ..request };
    let sending = async { (wallet.send_money(&request).await, wallet.run_pending().await) };
    let (sent, report) = output.during("Sending", sending).await;
    let id = sent?;
    report?;
    show_link(
        wallet,
        id,
        "Give this link to the receiver. Whoever has it can take the money:",
        args.qr,
        output,
    )
}

pub(super) async fn request(
    wallet: &Wallet,
    args: &PeerArgs,
    yes: bool,
    output: &Output,
) -> anyhow::Result<u8> {
    let mut request = wanted(wallet, args)?;
    if let Some(url) = &request.exchange {
        request.exchange = Some(usable_exchange(wallet, url, yes, output).await?.base_url);
    }
    let id = output.during("Requesting", wallet.request_money(&request)).await?;
    show_link(wallet, id, "Give this link to the payer:", args.qr, output)
}

/// Prints the link to give to the other person.
fn show_link(wallet: &Wallet, id: OpId, words: &str, qr: bool, output: &Output) -> anyhow::Result<u8> {
    let line = wallet.transaction(id)?;
    let receipt = wallet.purse_receipt(id)?;
    let mut text = line.description.clone();
    if let Some(uri) = &line.uri {
        text.push_str(&format!("\n{words}\n\n  {}\n", output.bold(uri)));
        if let Some(image) = output.qr(uri, qr)? {
            text.push_str(&format!("\n{image}\n"));
        }
        text.push_str(&format!(
            "\n`batzen wallet run` waits for the answer, `batzen wallet transactions {id} --json` shows the link again, `batzen wallet cancel {id}` takes it back."
        ));
    }
    output.result(&json!({ "uri": line.uri, "transaction": line, "receipt": receipt }), &text)?;
    Ok(0)
}

/// Asks what a link is about, and has the user accept the exchange's terms.
async fn look_up(wallet: &Wallet, uri: &str, yes: bool, output: &Output) -> anyhow::Result<PeerPayment> {
    let peer = output.during("Asking the exchange", wallet.inspect_peer(uri)).await?;
    usable_exchange(wallet, &peer.exchange, yes, output).await?;
    Ok(peer)
}

/// Describes a link in plain words.
fn describe(wallet: &Wallet, peer: &PeerPayment) -> anyhow::Result<String> {
    let exchange =
        wallet.with_state(|state| state.exchange(&peer.exchange).cloned()).map_err(WalletError::from)?;
    let (amount, terms) = (exchange.amount(peer.terms.amount), &peer.terms);
    let summary =
        if terms.summary.is_empty() { String::new() } else { format!(" for \"{}\"", terms.summary) };
    let at = &peer.exchange;
    let until = format!("expires {}", date(terms.expiration));
    Ok(match peer.direction {
        Direction::Push => format!("Somebody sends you {amount} of {at}{summary}; it {until}."),
        Direction::Pull => {
            let (now, age) = (wallet.now(), terms.min_age);
            let plan = wallet
                .with_state(|state| purse_payment::preview(state, &peer.exchange, amount, age, now))
                .map_err(WalletError::from)?;
            let fees = describe_fees(&[
                ("deposit", exchange.amount(plan.fees)),
                ("change", exchange.amount(plan.change_cost)),
            ]);
            let age = age_words(age);
            format!("Somebody asks you for {amount} of {at}{summary}{age}; on top {fees}; it {until}.")
        }
    })
}

pub(super) async fn accept(
    wallet: &Wallet,
    args: &AcceptArgs,
    yes: bool,
    output: &Output,
) -> anyhow::Result<u8> {
    let peer = look_up(wallet, &args.uri, yes, output).await?;
    // A repetition shows how it went.
    if wallet.with_state(|state| peer.known(state)).is_none() {
        peer.require_open().map_err(WalletError::from)?;
        output.note(&describe(wallet, &peer)?);
        let question = match peer.direction {
            Direction::Push => "Accept?",
            Direction::Pull => "Pay?",
        };
        output.confirm(question, yes)?;
    }
    let bar = output.progress("Waiting for the exchange");
    let accepted = wallet.accept_peer(&peer).await;
    let id = match (&accepted, wallet.with_state(|state| peer.known(state))) {
        (Ok(id), _) => *id,
        (Err(WalletError::Pending { .. }), Some(id)) => id,
        _ => {
            bar.finish_and_clear();
            return Err(accepted.expect_err("it was not accepted").into());
        }
    };
    if args.wait > 0 && accepted.is_err() {
        // An identity check may take a while.
        let _ = wallet.finish_within(id, Duration::from_secs(args.wait)).await;
    }
    // Coins, or change.
    let report = wallet.run_pending().await;
    bar.finish_and_clear();
    let report = report?;
    let line = wallet.transaction(id)?;
    let mut text = line.description.clone();
    if let Some(message) = &line.message {
        text.push_str(&format!("\n{message}"));
    }
    let is_pending = line.status == Status::Pending || !report.pending.is_empty();
    if is_pending {
        text.push_str("\nNot finished. Continue with `batzen wallet run`.");
    }
    text.push_str(&available(wallet, output)?);
    let receipt = wallet.purse_receipt(id)?;
    output.result(&json!({ "transaction": line, "receipt": receipt, "pending": report.pending }), &text)?;
    Ok(if line.status == Status::Pending { EXIT_PENDING } else { 0 })
}

pub(super) async fn decline(wallet: &Wallet, uri: &str, output: &Output) -> anyhow::Result<u8> {
    let peer = output.during("Asking the exchange", wallet.inspect_peer(uri)).await?;
    let id = wallet.decline_peer(&peer)?;
    let line = wallet.transaction(id)?;
    let then = match peer.direction {
        Direction::Push => "The sender gets the money back when it expires, or takes it back before.",
        Direction::Pull => "Nothing was paid.",
    };
    output.result(&line, &format!("Declined. {then}"))?;
    Ok(0)
}
