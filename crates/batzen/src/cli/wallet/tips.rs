//! `batzen wallet tip`.

use batzen_wallet::core::views::describe_fees;
use batzen_wallet::core::{OpId, tip};
use batzen_wallet::{Status, TipUri, Wallet, WalletError};

use super::errors::EXIT_PENDING;
use super::inputs;
use super::money::{available, usable_exchange};
use super::output::{Output, date};

/// Shows what a tip gives, asks, and picks it up.
async fn accept(wallet: &Wallet, uri: &TipUri, yes: bool, output: &Output) -> anyhow::Result<OpId> {
    let offer = output.during("Asking the shop", wallet.inspect_tip(uri)).await?;
    let exchange = usable_exchange(wallet, &offer.exchange_url, yes, output).await?;
    let plan = tip::preview(&exchange, offer.amount, wallet.now()).map_err(WalletError::from)?;
    output.note(&format!(
        "{} gives you {}, which become {} in {} coins of {}; {}. It expires {}.",
        offer.uri.merchant_base_url,
        output.bold(offer.amount),
        exchange.amount(plan.value),
        plan.denoms.len(),
        exchange.base_url,
        describe_fees(&[("withdrawal", exchange.amount(plan.fees))]),
        date(offer.expiration)
    ));
    output.confirm("Accept?", yes)?;
    let id = output.during("Fetching coins", wallet.accept_tip(&offer)).await?;
    if let Some(url) = &offer.next_url {
        output.note(&format!("Continue at {}", output.bold(url)));
    }
    Ok(id)
}

pub(super) async fn tip(wallet: &Wallet, uri: &str, yes: bool, output: &Output) -> anyhow::Result<u8> {
    let uri = inputs::tip_uri(uri)?;
    // A repetition continues, or shows how it went.
    let id = match wallet.with_state(|state| uri.known(state)) {
        Some(id) => wallet.finish_tip(id).await?,
        None => accept(wallet, &uri, yes, output).await?,
    };
    wallet.run_pending().await?;
    let row = wallet.transaction(id)?;
    let mut text = row.description.clone();
    if let Some(message) = &row.message {
        text.push_str(&format!("\n{message}"));
    }
    text.push_str(&available(wallet, output)?);
    output.result(&row, &text)?;
    Ok(if row.status == Status::Pending { EXIT_PENDING } else { 0 })
}
