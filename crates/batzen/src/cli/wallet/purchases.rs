//! `batzen wallet pay`.

use batzen_wallet::core::purchase::fees;
use batzen_wallet::core::views::describe_fees;
use batzen_wallet::{PurchaseOffer, Wallet, WalletError};
use serde_json::json;

use super::args::PayArgs;
use super::output::{Output, date};

/// What an offer is about and costs, in plain words.
fn describe(wallet: &Wallet, offer: &PurchaseOffer, output: &Output) -> anyhow::Result<String> {
    let terms = offer.terms();
    let now = wallet.now();
    let (fees, change_cost) = wallet
        .with_state(|state| {
            let plan = fees::preview(state, terms, now)?;
            let exchange = state.exchange(&plan.exchange)?;
            Ok((exchange.amount(plan.fees), exchange.amount(plan.coins.change_cost)))
        })
        .map_err(WalletError::Core)?;
    let mut text = format!(
        "{} ({}) asks for {}: {}\nOn top {}.",
        output.bold(&terms.merchant_name),
        terms.merchant_base_url,
        output.bold(terms.amount),
        terms.summary,
        describe_fees(&[("payment", fees), ("change", change_cost)])
    );
    if terms.min_age > 0 {
        text.push_str(&format!(" Only for people of {} or more.", terms.min_age));
    }
    if !terms.pay_deadline.is_never() {
        text.push_str(&format!(" The offer expires {}.", date(terms.pay_deadline)));
    }
    Ok(text)
}

pub async fn pay(wallet: &Wallet, args: &PayArgs, yes: bool, output: &Output) -> anyhow::Result<u8> {
    let bar = output.progress("Asking the shop");
    let offer = wallet.inspect_purchase(&args.uri).await;
    bar.finish_and_clear();
    let offer = offer?;
    // A repetition, and what was paid before, cost nothing.
    if offer.is_new() {
        output.note(&describe(wallet, &offer, output)?);
        output.confirm("Pay?", yes)?;
    }
    let bar = output.progress("Paying");
    let paid = wallet.pay_purchase(&offer).await;
    // Change, and the coins of a payment that failed.
    let report = wallet.run_pending().await;
    bar.finish_and_clear();
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
    for balance in wallet.balance()? {
        text.push_str(&format!("\nAvailable: {}", output.bold(balance.available)));
    }
    output.result(&json!({ "transaction": line, "receipt": receipt }), &text)?;
    Ok(0)
}
