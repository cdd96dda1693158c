//! `batzen wallet exchanges`.

use std::path::Path;

use batzen_wallet::core::url::normalise_base_url;
use batzen_wallet::{CipherChoice, Exchange, Wallet, WalletError};
use serde_json::{Value, json};

use super::args::{ExchangesArgs, ExchangesCommand, Switch};
use super::output::{Output, date};
use super::table::{Column, Table};
use super::{create, look, open};

pub(super) async fn run(path: &Path, args: &ExchangesArgs, output: &Output) -> anyhow::Result<u8> {
    match &args.command {
        ExchangesCommand::List => list(&look(path)?, output),
        ExchangesCommand::Add { url } => {
            let wallet = create(path)?;
            let exchange = fetch(&wallet, url, output).await?;
            let text = format!(
                "{}: {} denominations in {}.\nRead its terms with `batzen wallet exchanges tos {}`, accept them with `batzen wallet exchanges tos-accept {}`.",
                output.bold(&exchange.base_url),
                offered(&exchange),
                exchange.currency,
                exchange.base_url,
                exchange.base_url,
            );
            output.result(&describe(&exchange), &text)?;
            Ok(0)
        }
        ExchangesCommand::Update { url } => {
            let wallet = open(path)?;
            let urls = match url {
                Some(url) => vec![url.clone()],
                None => wallet.with_state(|state| state.exchanges.keys().cloned().collect()),
            };
            let mut updated = Vec::new();
            for url in &urls {
                updated.push(fetch(&wallet, url, output).await?);
            }
            let report = wallet.run_pending().await?;
            let text = updated
                .iter()
                .map(|exchange| format!("{}: up to date\n", exchange.base_url))
                .collect::<String>();
            let data: Vec<Value> = updated.iter().map(describe).collect();
            output.result(&json!({ "exchanges": data, "pending": report.pending }), &text)?;
            Ok(0)
        }
        ExchangesCommand::Show { url } => show(&look(path)?, url, output),
        ExchangesCommand::Tos { url } => {
            let exchange = known(&look(path)?, url)?;
            let data = json!({
                "exchange": exchange.base_url,
                "version": exchange.terms.version,
                "accepted": exchange.terms_accepted(),
                "text": exchange.terms.text,
            });
            output.result(&data, &exchange.terms.text)?;
            Ok(0)
        }
        ExchangesCommand::TosAccept { url } => {
            let wallet = open(path)?;
            wallet.accept_terms(url)?;
            let exchange = known(&wallet, url)?;
            let text =
                format!("Terms of {} (version {}) accepted.", exchange.base_url, exchange.terms.version);
            output.result(&describe(&exchange), &text)?;
            Ok(0)
        }
        ExchangesCommand::Privacy { url, round_sums: None, assortment: None, refresh_delay: None } => {
            privacy(&known(&look(path)?, url)?, output)
        }
        ExchangesCommand::Privacy { url, round_sums, assortment, refresh_delay } => {
            let wallet = open(path)?;
            let mut discretion = known(&wallet, url)?.discretion;
            let set = |option: &mut bool, switch: &Option<Switch>| {
                *option = switch.map_or(*option, |switch| switch == Switch::On);
            };
            set(&mut discretion.round_sums, round_sums);
            set(&mut discretion.assortment, assortment);
            discretion.refresh_delay = refresh_delay.unwrap_or(discretion.refresh_delay);
            wallet.set_discretion(url, discretion)?;
            privacy(&known(&wallet, url)?, output)
        }
    }
}

fn privacy(exchange: &Exchange, output: &Output) -> anyhow::Result<u8> {
    let discretion = exchange.discretion;
    let yes = |option| if option { "on" } else { "off" };
    let mut table = Table::new(&[Column::Left, Column::Left]);
    table.row(["round sums".to_owned(), yes(discretion.round_sums).to_owned()]);
    table.row(["assortment".to_owned(), yes(discretion.assortment).to_owned()]);
    table.row(["refresh delay".to_owned(), format!("up to {}", discretion.refresh_delay)]);
    let text = format!("{}\n{}", output.bold(&exchange.base_url), table.render(output));
    output.result(&json!({ "exchange": exchange.base_url, "privacy": discretion }), &text)?;
    Ok(0)
}

async fn fetch(wallet: &Wallet, url: &str, output: &Output) -> anyhow::Result<Exchange> {
    Ok(output.during(format!("Asking {url}"), wallet.add_exchange(url)).await?)
}

fn known(wallet: &Wallet, url: &str) -> anyhow::Result<Exchange> {
    let base_url = normalise_base_url(url).map_err(WalletError::from)?;
    Ok(wallet.with_state(|state| state.exchange(&base_url).cloned()).map_err(WalletError::from)?)
}

fn offered(exchange: &Exchange) -> usize {
    exchange.denoms.values().filter(|denom| denom.offered).count()
}

fn describe(exchange: &Exchange) -> Value {
    json!({
        "base_url": exchange.base_url,
        "currency": exchange.currency,
        "master_pub": exchange.master_pub,
        "version": exchange.version,
        "denominations": offered(exchange),
        "accounts": exchange.accounts,
        "terms_version": exchange.terms.version,
        "terms_accepted": exchange.terms_accepted(),
        "updated": exchange.updated,
    })
}

fn list(wallet: &Wallet, output: &Output) -> anyhow::Result<u8> {
    let exchanges: Vec<Exchange> = wallet.with_state(|state| state.exchanges.values().cloned().collect());
    let mut text = String::new();
    if exchanges.is_empty() {
        text.push_str("No exchanges yet. Add one with `batzen wallet exchanges add URL`.\n");
    }
    let mut table = Table::new(&[Column::Left, Column::Left, Column::Right, Column::Left, Column::Dim]);
    for exchange in &exchanges {
        let terms = if exchange.terms_accepted() { "terms accepted" } else { "terms not accepted" };
        table.row([
            exchange.base_url.clone(),
            exchange.currency.to_string(),
            format!("{} denominations", offered(exchange)),
            terms.to_owned(),
            format!("as of {}", date(exchange.updated)),
        ]);
    }
    text.push_str(&table.render(output));
    let data: Vec<Value> = exchanges.iter().map(describe).collect();
    output.result(&json!({ "exchanges": data }), &text)?;
    Ok(0)
}

fn show(wallet: &Wallet, url: &str, output: &Output) -> anyhow::Result<u8> {
    let exchange = known(wallet, url)?;
    let offers = exchange.offers(CipherChoice::Any, wallet.now());
    let mut text = format!("{}\n", output.bold(&exchange.base_url));
    let mut coins = Vec::new();
    let mut table = Table::new(&[
        Column::Right,
        Column::Right,
        Column::Right,
        Column::Right,
        Column::Right,
        Column::Left,
    ]);
    table.row(
        ["value", "withdraw fee", "deposit fee", "refresh fee", "refund fee", "spendable until"]
            .map(str::to_owned),
    );
    for offer in offers.iter().rev() {
        let Ok(denom) = exchange.denom(&offer.h_denom_pub) else { continue };
        let amount = |money| exchange.amount(money);
        table.row([
            amount(denom.value).to_string(),
            amount(denom.fee_withdraw).to_string(),
            amount(denom.fee_deposit).to_string(),
            amount(denom.fee_refresh).to_string(),
            amount(denom.fee_refund).to_string(),
            date(denom.stamp_expire_deposit),
        ]);
        coins.push(json!({
            "h_denom_pub": denom.h_denom_pub,
            "cipher": denom.key.cipher().name(),
            "value": amount(denom.value),
            "fee_withdraw": amount(denom.fee_withdraw),
            "fee_deposit": amount(denom.fee_deposit),
            "fee_refresh": amount(denom.fee_refresh),
            "fee_refund": amount(denom.fee_refund),
            "expire_deposit": denom.stamp_expire_deposit,
        }));
    }
    text.push_str(&table.render(output));
    for account in &exchange.accounts {
        text.push_str(&format!("account {account}\n"));
    }
    let mut data = describe(&exchange);
    data["coins"] = Value::Array(coins);
    output.result(&data, &text)?;
    Ok(0)
}
