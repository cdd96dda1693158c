//! The signer's dashboard.

use batzen_service::dashboard::Bad::{Above, Never, Positive};
use batzen_service::dashboard::Unit::{Count, Rate, Time, YesNo};
use batzen_service::dashboard::{
    CRYPTOGRAPHY, Extra, Layout, PROCESS, Section, chart, each, gauge, rate, tile,
};
use batzen_service::spread;

/// The dashboard.
pub const DASHBOARD: Layout = Layout { sections: &[&SIGNER, &CRYPTOGRAPHY, &PROCESS], work: &[] };

const SIGNER: Section = Section {
    id: "signer",
    title: "Signer",
    needs: "batzen_signer_items_total",
    tiles: &[
        tile("primary", "creates keys", YesNo, gauge("batzen_signer_primary"), Never),
        tile("keys", "private keys", Count, gauge("batzen_signer_keys"), Never),
        tile("signer-connections", "open connections", Count, gauge("batzen_signer_connections"), Never),
        tile("synced", "behind the primary", Time, gauge("batzen_signer_sync_lag_seconds"), Above(300.0)),
        tile(
            "strangers",
            "failed handshakes",
            Count,
            gauge("batzen_signer_handshakes_failed_total"),
            Positive,
        ),
        tile("signer-busy", "requests turned away", Count, gauge("batzen_signer_busy_total"), Positive),
        tile(
            "forbidden",
            "requests beyond a client's role",
            Count,
            gauge("batzen_signer_forbidden_total"),
            Positive,
        ),
    ],
    charts: &[
        chart(
            "items",
            "Items signed",
            "Items per second, by kind.",
            Rate,
            each("batzen_signer_items_total", "kind", rate("batzen_signer_items_total")),
        ),
        chart(
            "signer-time",
            "Request time",
            "From a request to its answer.",
            Time,
            spread!("batzen_signer_request_seconds"),
        ),
        chart(
            "unsigned",
            "Items not signed",
            "Since the start, by reason.",
            Count,
            each("batzen_signer_refused_total", "reason", gauge("batzen_signer_refused_total")),
        ),
    ],
    extra: Extra::None,
};
