//! `batzen wallet pay`, `refund` and `abort`.

use batzen_wallet::core::OpId;
use batzen_wallet::core::purchase::{fees, refunds};
use batzen_wallet::core::views::describe_fees;
use batzen_wallet::{PurchaseOffer, Status, Wallet, WalletError};
use serde_json::json;

use super::args::PayArgs;
use super::errors::{EXIT_PENDING, EXIT_REFUSED};
use super::inputs::{self, PurchaseName};
use super::money::available;
use super::output::{Output, date};

/// Describes an offer and its costs in plain words.
fn describe(wallet: &Wallet, offer: &PurchaseOffer, output: &Output) -> anyhow::Result<String> {
    let terms = offer.terms();
    let now = wallet.now();
    let plan = wallet.with_state(|state| fees::preview(state, terms, now)).map_err(WalletError::Core)?;
    let currency = terms.amount.currency;
    let mut text = format!(
        "{} ({}) asks for {}: {}\nOn top {}.",
        output.bold(&terms.merchant_name),
        terms.merchant_base_url,
        output.bold(terms.amount),
        terms.summary,
        describe_fees(&[
            ("payment", plan.fees.of(currency)),
            ("change", plan.coins.change_cost.of(currency))
        ])
    );
    if plan.exchanges.len() > 1 {
        text.push_str(&format!(" The coins are of {}.", plan.exchanges.join(" and ")));
    }
    if terms.min_age > 0 {
        text.push_str(&format!(" Only for people of {} or more.", terms.min_age));
    }
    if !terms.pay_deadline.is_never() {
        text.push_str(&format!(" The offer expires {}.", date(terms.pay_deadline)));
    }
    Ok(text)
}

pub(super) async fn pay(wallet: &Wallet, args: &PayArgs, yes: bool, output: &Output) -> anyhow::Result<u8> {
    let offer = output.during("Asking the shop", wallet.inspect_purchase(&args.uri)).await?;
    // A repetition, and what was paid before, cost nothing.
    if offer.is_new() {
        output.note(&describe(wallet, &offer, output)?);
        output.confirm("Pay?", yes)?;
    }
    // Then change, and the coins of a payment that failed.
    let paying = async { (wallet.pay_purchase(&offer).await, wallet.run_pending().await) };
    let (paid, report) = output.during("Paying", paying).await;
    let id = paid?;
    report?;
    let line = wallet.transaction(id)?;
    let receipt = wallet.purchase_receipt(id)?;
    let mut text = match (offer.known, offer.paid_before) {
        (None, Some(_)) => {
            format!("You paid for this before. The shop has your receipt of it.\n{}", line.description)
        }
        _ => format!("Paid. {}", line.description),
    };
    if let Some(url) = &receipt.fulfillment_url {
        text.push_str(&format!("\nContinue at {}", output.bold(url)));
    }
    if let Some(until) = wallet.with_state(|state| refunds::promised(state, id)) {
        text.push_str(&format!(
            "\nThe shop may refund by itself until {}; `batzen wallet run` waits for it.",
            date(until)
        ));
    }
    text.push_str(&available(wallet, output)?);
    output.result(&json!({ "transaction": line, "receipt": receipt }), &text)?;
    Ok(0)
}

pub(super) async fn refund(wallet: &Wallet, purchase: &str, output: &Output) -> anyhow::Result<u8> {
    let id = match inputs::purchase(purchase)? {
        PurchaseName::Id(id) => id,
        PurchaseName::Uri(uri) => wallet.purchase_of_refund(&uri)?,
    };
    // Then fresh coins, and what the exchange has not confirmed yet.
    let asking = async { (wallet.pick_up_refunds(id).await, wallet.run_pending().await) };
    let (picked_up, report) = output.during("Asking the shop", asking).await;
    let refunds = picked_up?;
    report?;
    let rows = refunds.iter().map(|id| wallet.transaction(*id)).collect::<Result<Vec<_>, _>>()?;
    let mut text = String::new();
    if rows.is_empty() {
        text.push_str("The shop has approved no refund.");
    }
    for row in &rows {
        let state = match row.status {
            Status::Done => "Refunded",
            Status::Pending => "Not confirmed by the exchange yet; continue with `batzen wallet run`",
            Status::Failed => "Failed",
        };
        let separator = if text.is_empty() { "" } else { "\n" };
        text.push_str(&format!("{separator}{state}: {}", row.description));
        if let Some(message) = &row.message {
            text.push_str(&format!("\n  {message}"));
        }
    }
    text.push_str(&available(wallet, output)?);
    let has = |status: Status| rows.iter().any(|row| row.status == status);
    let code = match (has(Status::Pending), has(Status::Done), has(Status::Failed)) {
        (true, ..) => EXIT_PENDING,
        (false, false, true) => EXIT_REFUSED,
        _ => 0,
    };
    output.result(&json!({ "purchase": wallet.transaction(id)?, "refunds": rows }), &text)?;
    Ok(code)
}

pub(super) async fn abort(wallet: &Wallet, id: OpId, output: &Output) -> anyhow::Result<u8> {
    let asking = async { (wallet.abort_purchase(id).await, wallet.run_pending().await) };
    let (aborted, report) = output.during("Asking the shop", asking).await;
    match aborted {
        Ok(())
        | Err(WalletError::Pending { .. } | WalletError::NoAnswer(_) | WalletError::Unavailable { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    report?;
    let row = wallet.transaction(id)?;
    let (mut text, code) = match row.status {
        // The run may have finished it.
        Status::Failed => {
            let back = row.refunded.map_or_else(
                || "The shop had deposited none of it; the coins are refreshed.".to_owned(),
                |refunded| format!("The shop has given back {refunded}."),
            );
            (format!("Given up. {back}"), 0)
        }
        Status::Done => {
            ("It is paid, as the shop says: the wallet has the receipt.".to_owned(), EXIT_REFUSED)
        }
        Status::Pending => {
            let message = row.message.as_deref().unwrap_or("the shop has not answered");
            (format!("Not finished: {message}. Continue with `batzen wallet run`."), EXIT_PENDING)
        }
    };
    text.push_str(&available(wallet, output)?);
    output.result(&row, &text)?;
    Ok(code)
}
