//! The options that Batzen's programs read. Others are most likely misspelled, so programs warn about them at
//! their start, and `batzen config check` reports them.

use batzen_config::Config;

/// Pairs of a section (with `*` at its end: all with this prefix) and its options.
pub(super) type Known = (&'static str, &'static [&'static str]);

/// The options that a ledger server reads, by section.
const LEDGER: &[Known] = &[
    (
        "ledger",
        &["TCP", "UNIXPATH", "HTTP", "HTTP_TOKEN_FILE", "HOSTNAMES", "CONNECTIONS_MAX", "DATA_DIR", "DB"],
    ),
    ("ledgerdb-embedded", &["INDEX_MEMORY_MIB"]),
    ("ledgerdb-postgres", &["CONFIG"]),
];

/// The options that a switch reads, by section.
const SWITCH: &[Known] = &[
    (
        "switch",
        &[
            "PORT",
            "ADMIN_PORT",
            "BIND_TO",
            "HOSTNAMES",
            "DATA_DIR",
            "DB",
            "LEDGER",
            "FOUR_EYES",
            "APPROVAL_PATIENCE",
            "ALLOW_ON_US",
        ],
    ),
    ("switchdb-embedded", &["INDEX_MEMORY_MIB"]),
    ("switchdb-postgres", &["CONFIG"]),
    ("switch-operator-*", &["TOKEN"]),
];

/// The options of all programs, since one file may configure several.
pub(super) fn all() -> Vec<Known> {
    [
        batzen_exchange::config::KNOWN,
        batzen_signer::service_config::KNOWN,
        batzen_feed::config::KNOWN,
        batzen_bank::KNOWN_OPTIONS,
        batzen_merchant::KNOWN_OPTIONS,
        batzen_auditor::KNOWN_OPTIONS,
        SWITCH,
        LEDGER,
    ]
    .concat()
}

/// Options that are most likely misspelled, one line each.
pub(super) fn unknown(ini: &Config) -> Vec<String> {
    let known = all();
    let sections = ini.unknown_sections(&known).into_iter().map(|section| section.to_string());
    let options = ini.unknown_options(&known).into_iter().map(|option| option.to_string());
    sections.chain(options).collect()
}

/// Logs what is most likely misspelled.
pub(super) fn warn(ini: &Config) {
    for line in unknown(ini) {
        tracing::warn!("{line}");
    }
}
