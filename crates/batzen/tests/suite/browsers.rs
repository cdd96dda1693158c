//! The reach of every endpoint of every service, as its table has it: who may use it from a page in a browser.
//!
//! The kit's tests show what each reach means. A new endpoint is for programs and the service's own pages unless its row
//! says otherwise, and this list shows each that does.

use std::collections::BTreeSet;
use std::path::Path;

use batzen_service::Reach;

/// All endpoints, sorted.
fn all() -> String {
    let mut lines = BTreeSet::new();
    for (service, endpoints) in [
        ("exchange", batzen_exchange::api::endpoints()),
        ("bank", batzen_bank::endpoints()),
        ("merchant", batzen_merchant::endpoints()),
        ("auditor", batzen_auditor::endpoints()),
        ("switch", batzen_switch::api::endpoints().concat()),
        ("signer", batzen_signer::page::endpoints()),
        ("ledger", batzen_ledger_service::net::api::endpoints()),
    ] {
        assert!(!endpoints.is_empty());
        for (endpoint, reach) in endpoints {
            let reach = match reach {
                Reach::Everyone => "everyone",
                Reach::Page => "page",
                Reach::Own => "own",
            };
            lines.insert(format!("{service:<8} {reach:<8} {endpoint}\n"));
        }
    }
    lines.into_iter().collect()
}

#[test]
fn every_endpoint_has_the_listed_reach() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browsers.txt");
    let found = all();
    if std::env::var_os("BATZEN_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let listed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(found, listed, "BATZEN_BLESS=1 writes {} again", path.display());
}

/// Endpoints that move money, or show whose it is, are for programs and own pages.
#[test]
fn no_page_of_another_site_reads_what_is_private() {
    for line in all().lines() {
        let is_private =
            ["/private", "/management/instances", "/metrics", "/dashboard", "/web/", "/transfer"]
                .iter()
                .any(|part| line.contains(part))
                || line.contains("/taler-bank-access/accounts/")
                || line.contains("/history/")
                || line.contains("admin/add-incoming")
                || line.contains("/kyc-officer/")
                || (line.starts_with("auditor ") && line.contains(" /audit"))
                || line.starts_with("switch ")
                || (line.starts_with("ledger ") && line.contains(" /v1/") && !line.contains("openapi"));
        // The exchange shows transfers to whoever knows their secret subject.
        let is_exempt = line.starts_with("exchange") && line.contains("/transfers/")
            || [" /health", " /ready"].iter().any(|page| line.ends_with(page));
        assert!(!is_private || is_exempt || line.contains(" own "), "{line}");
    }
}
