//! `batzen wallet evidence`.

use std::path::Path;

use anyhow::bail;
use batzen_wallet::Wallet;
use batzen_wallet::core::evidence::{Evidence, EvidenceFile};
use serde_json::json;

use super::args::EvidenceArgs;
use super::backup_file::write_new;
use super::output::{Output, date};
use super::{look, open};

pub(super) fn run(path: &Path, args: &EvidenceArgs, output: &Output) -> anyhow::Result<u8> {
    if let (Some(id), true) = (args.id, args.accept_refused) {
        open(path)?.accept_refused(id)?;
        let text = "Accepted. Continue with `batzen wallet run`.";
        output.result(&json!({ "accepted": id }), text)?;
        return Ok(0);
    }
    let wallet = look(path)?;
    let all = wallet.evidence();
    let chosen: Vec<&Evidence> = all.iter().filter(|item| args.id.is_none_or(|id| id == item.id)).collect();
    if let (Some(id), true) = (args.id, chosen.is_empty()) {
        bail!("there is no evidence {id}; `batzen wallet evidence` lists what there is");
    }
    let document = EvidenceFile { batzen_wallet_evidence: 1, written: wallet.now(), evidence: chosen };
    match &args.out {
        Some(file) => {
            let content = serde_json::to_vec_pretty(&document)?;
            write_new(file, &content)?;
            let data = json!({ "file": file, "bytes": content.len(), "records": document.evidence.len() });
            output.result(
                &data,
                &format!("Saved {} records to {}.", document.evidence.len(), file.display()),
            )?;
        }
        None => output.result(&document, &list(&document.evidence, output))?,
    }
    Ok(0)
}

fn list(evidence: &[&Evidence], output: &Output) -> String {
    if evidence.is_empty() {
        return "Nobody gave a false proof.".to_owned();
    }
    let mut text = String::new();
    for item in evidence {
        let about = item.operation.map_or_else(|| "its keys".to_owned(), |id| format!("operation {id}"));
        let state = match item.settled {
            Some(time) => format!("settled {}", date(time)),
            None => "not settled".to_owned(),
        };
        text.push_str(&format!(
            "{:>4}  {}  {} about {about}, {state}\n      {}\n      {} {}: HTTP {}, {} bytes",
            item.id,
            output.dim(date(item.first_seen)),
            output.bold(item.purchase.as_ref().map_or(&item.exchange, |proof| &proof.merchant_base_url)),
            item.reason,
            item.request.method,
            item.request.url,
            item.answer.status,
            item.answer.body_size,
        ));
        if item.times > 1 {
            text.push_str(&format!("; {} times, last {}", item.times, date(item.last_seen)));
        }
        text.push('\n');
    }
    text.push_str("For an auditor: `batzen wallet evidence --out FILE`");
    text
}

/// The number of false proofs that are not settled.
pub(super) fn unsettled(wallet: &Wallet) -> usize {
    wallet.with_state(|state| state.evidence.values().filter(|item| item.settled.is_none()).count())
}

/// A notice about false proofs that are not settled, if there are any.
pub(super) fn notice(wallet: &Wallet, output: &Output) -> String {
    match unsettled(wallet) {
        0 => String::new(),
        count => format!(
            "{} ({count}). Nothing was written off.\n  See `batzen wallet evidence`; for an auditor: `batzen wallet evidence --out FILE`\n",
            output.bold("The exchange gave a false proof")
        ),
    }
}
