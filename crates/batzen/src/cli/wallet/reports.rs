//! Commands that only look.

use batzen_wallet::{Status, Wallet};
use serde_json::json;

use super::evidence;
use super::output::{Output, date};

pub fn balance(wallet: &Wallet, output: &Output) -> anyhow::Result<u8> {
    let balances = wallet.balance()?;
    let mut text = String::new();
    if balances.is_empty() {
        text.push_str("The wallet is empty. Get coins with `batzen wallet withdraw`.\n");
    }
    for balance in &balances {
        text.push_str(&format!("Available         {}\n", output.bold(balance.available)));
        for (name, amount) in [
            ("Coming in", balance.pending_incoming),
            ("Going out", balance.pending_outgoing),
            ("Too small to use", balance.dust),
            ("Disputed", balance.disputed),
        ] {
            if !amount.is_zero() {
                text.push_str(&format!("{name:<17} {amount}\n"));
            }
        }
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

pub fn transactions(wallet: &Wallet, all: bool, id: Option<u64>, output: &Output) -> anyhow::Result<u8> {
    let lines = match id {
        Some(id) => vec![wallet.transaction(id)?],
        None => wallet.transactions(all)?,
    };
    let mut text = String::new();
    if lines.is_empty() {
        text.push_str("Nothing happened yet.\n");
    }
    for line in &lines {
        let status = match line.status {
            Status::Pending if line.evidence.is_some() => " (disputed)",
            Status::Pending => " (pending)",
            Status::Done => "",
            Status::Failed => " (failed)",
        };
        text.push_str(&format!(
            "{:>4}  {}  {:>16}  {}{status}\n",
            line.id,
            output.dim(date(line.timestamp)),
            output.bold(&line.effect),
            line.description
        ));
        if let Some(message) = &line.message {
            text.push_str(&format!("      {message}\n"));
        }
    }
    text.push_str(&evidence::notice(wallet, output));
    output.result(&json!({ "transactions": lines }), &text)?;
    Ok(0)
}

pub fn pending(wallet: &Wallet, output: &Output) -> anyhow::Result<u8> {
    let pending = wallet.pending();
    let mut text = String::new();
    if pending.is_empty() {
        text.push_str("Nothing is pending.\n");
    }
    for operation in &pending {
        let message = operation.message.as_deref().unwrap_or("go on with `batzen wallet run`");
        text.push_str(&format!("{:>4}  {}  {message}\n", operation.id, operation.kind));
    }
    text.push_str(&evidence::notice(wallet, output));
    output.result(&json!({ "pending": pending }), &text)?;
    Ok(0)
}

pub fn coins(wallet: &Wallet, output: &Output) -> anyhow::Result<u8> {
    let mut list = Vec::new();
    let mut text = String::new();
    wallet.with_state(|state| {
        for coin in state.coins.values() {
            let Ok(exchange) = state.exchange(&coin.exchange) else { continue };
            let Ok(denom) = exchange.denom(&coin.h_denom_pub) else { continue };
            let (value, remaining) = (exchange.amount(denom.value), exchange.amount(coin.remaining));
            let cipher = if denom.is_cs() { "CS" } else { "RSA" };
            text.push_str(&format!(
                "{remaining:<14} of {value:<14} {cipher:<3} {:?}, spendable until {}  {}\n",
                coin.status,
                date(denom.stamp_expire_deposit),
                output.dim(coin.coin_pub)
            ));
            list.push(json!({
                "coin_pub": coin.coin_pub,
                "exchange": coin.exchange,
                "h_denom_pub": coin.h_denom_pub,
                "cipher": cipher,
                "value": value,
                "remaining": remaining,
                "status": coin.status,
                "expires": denom.stamp_expire_deposit,
            }));
        }
    });
    if list.is_empty() {
        text.push_str("No coins.\n");
    }
    output.result(&json!({ "coins": list }), &text)?;
    Ok(0)
}
