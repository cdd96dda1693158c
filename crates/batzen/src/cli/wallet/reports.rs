//! Commands that only read.

use batzen_crypto::age::UNRESTRICTED;
use batzen_wallet::{Status, Transaction, Wallet};
use serde_json::json;

use super::evidence;
use super::money::pending_words;
use super::output::{Output, date};
use super::table::{Column, Table};

pub(super) fn balance(wallet: &Wallet, output: &Output) -> anyhow::Result<u8> {
    let balances = wallet.balance()?;
    let mut text = String::new();
    if balances.is_empty() {
        text.push_str("The wallet is empty. Get coins with `batzen wallet withdraw`.\n");
    }
    for balance in &balances {
        let mut table = Table::new(&[Column::Left, Column::Bold]);
        table.row(["Available".to_owned(), balance.available.to_string()]);
        for (name, amount) in [
            ("Coming in", balance.pending_incoming),
            ("Too small to use", balance.dust),
            ("Disputed", balance.disputed),
            ("Going out", balance.pending_outgoing),
        ] {
            if !amount.is_zero() {
                table.row([name.to_owned(), amount.to_string()]);
            }
        }
        if balance.total != balance.available {
            table.row(["Total (without going out)".to_owned(), balance.total.to_string()]);
        }
        text.push_str(&table.render(output));
        if balance.exchanges.len() > 1 {
            for part in &balance.exchanges {
                text.push_str(&format!(
                    "  {:<15} {}\n",
                    part.available.to_string(),
                    output.dim(&part.exchange)
                ));
            }
        }
    }
    text.push_str(&evidence::notice(wallet, output));
    let unsettled = evidence::unsettled(wallet);
    output.result(&json!({ "balances": balances, "unsettled_evidence": unsettled }), &text)?;
    Ok(0)
}

pub(super) fn transactions(
    wallet: &Wallet,
    all: bool,
    id: Option<u64>,
    output: &Output,
) -> anyhow::Result<u8> {
    if let Some(id) = id {
        let row = wallet.transaction(id)?;
        let text = transaction_table(std::slice::from_ref(&row)).render(output);
        output.result(&json!({ "transactions": [row] }), &text)?;
        return Ok(0);
    }
    let history = wallet.history(all)?;
    let mut text = String::new();
    if history.transactions.is_empty() {
        text.push_str("Nothing happened yet.\n");
    }
    let mut table = transaction_table(&history.transactions);
    for total in &history.totals {
        let words = "Total: available, coming in, too small and disputed (see `batzen wallet balance`)";
        table.row([String::new(), String::new(), total.total.clone(), words.to_owned()]);
    }
    text.push_str(&table.render(output));
    text.push_str(&evidence::notice(wallet, output));
    output.result(&history, &text)?;
    Ok(0)
}

fn transaction_table(rows: &[Transaction]) -> Table {
    let mut table = Table::new(&[Column::Right, Column::Dim, Column::Bold, Column::Left]);
    for row in rows {
        let status = match row.status {
            Status::Pending if row.evidence.is_some() => " (disputed)",
            Status::Pending => " (pending)",
            Status::Done => "",
            Status::Failed => " (failed)",
        };
        let id = row.id.map(|id| id.to_string()).unwrap_or_default();
        let description = format!("{}{status}", row.description);
        table.row([id, date(row.timestamp), row.effect.clone(), description]);
        if let Some(message) = &row.message {
            table.note(message);
        }
    }
    table
}

pub(super) fn pending(wallet: &Wallet, output: &Output) -> anyhow::Result<u8> {
    let pending = wallet.pending();
    let mut text = String::new();
    if pending.is_empty() {
        text.push_str("Nothing is pending.\n");
    }
    let mut table = Table::new(&[Column::Right, Column::Left, Column::Left]);
    for operation in &pending {
        table.row([operation.id.to_string(), operation.kind.to_owned(), pending_words(operation)]);
    }
    text.push_str(&table.render(output));
    text.push_str(&evidence::notice(wallet, output));
    output.result(&json!({ "pending": pending }), &text)?;
    Ok(0)
}

pub(super) fn coins(wallet: &Wallet, output: &Output) -> anyhow::Result<u8> {
    let mut list = Vec::new();
    let mut text = String::new();
    let columns =
        [Column::Bold, Column::Left, Column::Left, Column::Left, Column::Left, Column::Left, Column::Dim];
    let mut table = Table::new(&columns);
    wallet.with_state(|state| {
        for coin in state.coins.values() {
            let Ok(exchange) = state.exchange(&coin.exchange) else { continue };
            let Ok(denom) = exchange.denom(&coin.h_denom_pub) else { continue };
            let (value, remaining) = (exchange.amount(denom.value), exchange.amount(coin.remaining));
            let age_limit = coin.age.as_ref().map(|age| age.limit).filter(|limit| *limit < UNRESTRICTED);
            let cipher = if denom.is_cs() { "CS" } else { "RSA" };
            table.row([
                remaining.to_string(),
                format!("of {value}"),
                cipher.to_owned(),
                format!("{:?}", coin.status).to_lowercase(),
                age_limit.map_or_else(String::new, |limit| format!("age limit {limit}")),
                format!("spendable until {}", date(denom.stamp_expire_deposit)),
                coin.coin_pub.to_string(),
            ]);
            let mut item = json!({
                "coin_pub": coin.coin_pub,
                "exchange": coin.exchange,
                "h_denom_pub": coin.h_denom_pub,
                "cipher": cipher,
                "value": value,
                "remaining": remaining,
                "status": coin.status,
                "expires": denom.stamp_expire_deposit,
            });
            if let Some(limit) = age_limit {
                item["age_limit"] = limit.into();
            }
            list.push(item);
        }
    });
    if list.is_empty() {
        text.push_str("No coins.\n");
    }
    text.push_str(&table.render(output));
    output.result(&json!({ "coins": list }), &text)?;
    Ok(0)
}
