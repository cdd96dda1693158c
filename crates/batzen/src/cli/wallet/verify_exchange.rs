//! `batzen wallet verify-exchange`.

use anyhow::bail;
use batzen_wallet::core::liabilities::{Item, Report};
use batzen_wallet::{CheckOptions, Source, Wallet};
use serde_json::json;

use super::args::VerifyExchangeArgs;
use super::backup_file::write_new;
use super::errors::EXIT_DISPUTED;
use super::output::{Output, date};
use super::table::{Column, Table};

pub(super) async fn run(wallet: &Wallet, args: &VerifyExchangeArgs, output: &Output) -> anyhow::Result<u8> {
    let exchange = match &args.exchange {
        Some(url) => url.clone(),
        None => {
            let mut known: Vec<String> = wallet.with_state(|state| state.exchanges.keys().cloned().collect());
            match (known.pop(), known.is_empty()) {
                (Some(only), true) => only,
                (None, _) => bail!("the wallet knows no exchange"),
                (Some(_), false) => bail!("the wallet knows several exchanges: name one"),
            }
        }
    };
    let source = match &args.from {
        None => Source::Exchange,
        Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
            Source::Mirror(format!("{}/", url.trim_end_matches('/')))
        }
        Some(dir) => Source::Directory(dir.into()),
    };
    let options = CheckOptions {
        source,
        payments: args.payments,
        receipts: !args.no_receipts,
        auditor: args.auditor.clone().zip(args.auditor_key),
    };
    let checking = wallet.verify_liabilities(&exchange, &options);
    let (report, evidence) = output.during(format!("Checking {exchange}"), checking).await?;
    let mut text = describe(&report, output);
    // One proof is enough.
    let mut written = None;
    if let (Some(path), Some(evidence)) = (&args.evidence, evidence.first()) {
        write_new(path, &serde_json::to_vec_pretty(evidence)?)?;
        text.push_str(&format!("Proof written to {}.\n", path.display()));
        written = Some(path);
    }
    output.result(&json!({ "report": report, "evidence": written }), &text)?;
    let is_right = report.missing.is_empty() && report.frauds.is_empty();
    Ok(if is_right { 0 } else { EXIT_DISPUTED })
}

fn describe(report: &Report, output: &Output) -> String {
    let mut text = match (report.end, &report.outstanding) {
        (Some(end), Some(outstanding)) => {
            format!(
                "{} owes {outstanding} for its coins, as of {}.\n",
                output.bold(&report.exchange),
                date(end)
            )
        }
        _ => format!("{} has published nothing yet.\n", output.bold(&report.exchange)),
    };
    if let Some(confirmed) = report.confirmed {
        text.push_str(if confirmed {
            "The auditor has confirmed it.\n"
        } else {
            "The auditor has not confirmed it.\n"
        });
    }
    let mut table = Table::new(&[Column::Right, Column::Left]);
    for (items, what) in [
        (&report.counted, "counted"),
        (&report.not_due, "not due yet"),
        (
            &report.skipped,
            "not looked for, since the exchange would learn whose they are (--payments, --from DIR)",
        ),
        (&report.uncounted, "uses of coins not counted; perhaps a shop has not handed them in"),
        (&report.unconfirmed, "coins without a receipt from the exchange"),
    ] {
        if !items.is_empty() {
            table.row([items.len().to_string(), what.to_owned()]);
        }
    }
    text.push_str(&table.render(output));
    for item in &report.missing {
        text.push_str(&format!("{} {}\n", output.bold("MISSING:"), line(item)));
    }
    for fraud in &report.frauds {
        text.push_str(&format!("{} {fraud}\n", output.bold("FRAUD:")));
    }
    text
}

fn line(item: &Item) -> String {
    let proof =
        if item.has_receipt { "with a receipt" } else { "without a receipt, so that it cannot be proved" };
    format!("a coin of {} from operation {}, {}, {proof}", item.amount, item.operation, date(item.time))
}
