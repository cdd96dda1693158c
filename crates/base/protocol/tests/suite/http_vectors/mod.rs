//! Recorded exchanges of messages between an exchange, a bank, clients and wallets: every body parses
//! strictly and serialises to an equal value, errors have the status of their code, and every signature
//! verifies.
//!
//! The recordings come with the project; the environment variable `BATZEN_HTTP_VECTORS` names a further
//! directory of the same format.

mod bodies;
mod histories;
mod keys;
mod operations;
mod purses;
mod recording;

use std::path::Path;

use keys::{Exchange, Tally};
use recording::Recording;
use serde_json::Value;

fn directories() -> Vec<std::path::PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/http");
    let further = std::env::var_os("BATZEN_HTTP_VECTORS").map(Into::into);
    [Some(own), further].into_iter().flatten().collect()
}

/// The recordings of each file of a directory.
fn files(directory: &Path) -> Vec<Vec<Recording>> {
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no recordings in {}", directory.display());
    paths
        .iter()
        .map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let file = path.file_name().unwrap().to_string_lossy();
            text.lines()
                .filter(|line| !line.trim().is_empty())
                .map(|line| Recording { file: file.to_string(), ..serde_json::from_str(line).unwrap() })
                .collect()
        })
        .collect()
}

/// Runs a check, and names the recording if it fails.
fn each(recording: &Recording, check: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) {
        eprintln!(
            "in {} {} step {}: {} {} -> {}",
            recording.file,
            recording.flow,
            recording.step,
            recording.request.method,
            recording.request.path,
            recording.response.status
        );
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn http_vectors_bodies() {
    for directory in directories() {
        for file in files(&directory) {
            let currency =
                file.iter().find_map(|recording| recording.response.body.get("currency")?.as_str());
            for recording in &file {
                each(recording, || bodies::check(recording, currency));
            }
        }
    }
}

/// Verifies every signature of the recordings of a directory.
fn verify(directory: &Path) -> Tally {
    let mut tally = Tally::default();
    let files = files(directory);
    for file in &files {
        let exchange = Exchange::of(file);
        let (mut seen, mut known) = Default::default();
        for recording in file.iter().filter(|recording| recording.server == "exchange") {
            each(recording, || {
                exchange.check(recording, &mut tally);
                operations::check(&exchange, &mut seen, recording, &mut tally);
                purses::check(&exchange, &mut known, recording, &mut tally);
            });
        }
    }
    if let Ok(text) = std::fs::read_to_string(directory.join("secrets.json")) {
        let secrets: Value = serde_json::from_str(&text).unwrap();
        purses::contracts(&secrets, &files, &mut tally);
    }
    tally
}

#[test]
fn http_vectors_signatures() {
    let directories = directories();
    let tally = verify(&directories[0]);
    for (what, count) in &tally.0 {
        println!("{count:6} {what}");
    }
    // Every kind of message in the recordings was checked, so none was skipped by mistake.
    for what in [
        "AuditorExchangeKeys",
        "ExchangeAffirmDenomExpired",
        "ExchangeAffirmDenomUnknown",
        "ExchangeConfirmDeposit",
        "ExchangeConfirmMelt",
        "ExchangeConfirmPurseCreation",
        "ExchangeConfirmPurseMerged",
        "ExchangeConfirmRecoup",
        "ExchangeConfirmRecoupRefresh",
        "ExchangeConfirmRefund",
        "ExchangeConfirmWire",
        "ExchangeConfirmWireDeposit",
        "ExchangeKeySet",
        "ExchangePurseStatus",
        "ExchangeReserveClosed",
        "MasterAddAuditor",
        "MasterAddWire",
        "MasterDelAuditor",
        "MasterDelWire",
        "MasterDenominationKeyRevoked",
        "MasterDenominationKeyValidity",
        "MasterExtension",
        "MasterGlobalFees",
        "MasterSigningKeyValidity",
        "MasterWireDetails",
        "MasterWireFees",
        "MerchantRefund",
        "MerchantTrackTransaction",
        "MerchantTrackTransactionWallet",
        "SmCsDenominationKey",
        "SmRsaDenominationKey",
        "SmSigningKey",
        "WalletAccountMerge",
        "WalletAccountSetup",
        "WalletCoinDeposit",
        "WalletCoinLink",
        "WalletCoinMelt",
        "WalletCoinRecoup",
        "WalletCoinRecoupRefresh",
        "WalletPurseCreate",
        "WalletPurseDeposit",
        "WalletPurseEcontract",
        "WalletPurseMerge",
        "WalletReserveClose",
        "WalletReserveHistory",
        "WalletReserveStatus",
        "WalletReserveWithdraw",
        "blind CS signature",
        "blind RSA signature",
        "coin",
        "contract hash",
        "decrypted contract",
        "h_payto of a wallet",
        "link",
        "origin of a recouped coin",
        "refresh commitment",
        "refused signature",
    ] {
        assert!(tally.0.contains_key(what), "no {what}");
    }
    if let Some(further) = directories.get(1) {
        assert!(verify(further).0.values().sum::<usize>() > 0);
    }
}
