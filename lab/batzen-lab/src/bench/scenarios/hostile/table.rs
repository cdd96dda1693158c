//! The table of attacks: the service, the name and a description.

use std::fmt::Write as _;

use clap::ValueEnum;

/// A service that is attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// The exchange, beside payments
    Exchange,
    /// The exchange, beside purses that are created and merged
    Purses,
    /// The exchange, beside people who come back from an identity provider
    Kyc,
    /// A merchant backend, beside purchases
    Merchant,
    /// An auditor, beside confirmations of deposits
    Auditor,
    /// The exchange's stream to auditors, beside auditors that connect
    Feed,
    /// The ledger's binary port, beside transfers, each over a new connection
    Ledger,
}

impl Service {
    pub(super) const ALL: [Self; 7] =
        [Self::Exchange, Self::Purses, Self::Kyc, Self::Merchant, Self::Auditor, Self::Feed, Self::Ledger];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Purses => "purses",
            Self::Kyc => "kyc",
            Self::Merchant => "merchant",
            Self::Auditor => "auditor",
            Self::Feed => "feed",
            Self::Ledger => "ledger",
        }
    }

    /// The operations of the honest load.
    pub(super) const fn honest(self) -> &'static str {
        match self {
            Self::Exchange => "payments",
            Self::Purses => "purses",
            Self::Kyc => "identifications",
            Self::Merchant => "purchases, half of them from templates",
            Self::Auditor => "confirmations",
            Self::Feed => "auditors that connect",
            Self::Ledger => "transfers, each over a new connection",
        }
    }

    /// Honest operations per second by default.
    pub(super) const fn rate(self) -> f64 {
        match self {
            Self::Exchange => 200.0,
            Self::Purses | Self::Ledger => 50.0,
            Self::Kyc | Self::Merchant => 25.0,
            Self::Auditor => 100.0,
            Self::Feed => 20.0,
        }
    }

    /// Connections of an attack by default. A ledger has more places than the others.
    pub(super) const fn connections(self) -> u32 {
        match self {
            Self::Ledger => 3_000,
            _ => 400,
        }
    }
}

/// An attack on a service.
pub(super) struct Kind {
    pub(super) service: Service,
    pub(super) name: &'static str,
    text: &'static str,
}

const fn on(service: Service, name: &'static str, text: &'static str) -> Kind {
    Kind { service, name, text }
}

/// All attacks.
pub(super) const ATTACKS: [Kind; 31] = [
    on(Service::Exchange, "slow-uploads", "large bodies that start fast and then drip, one byte per second"),
    on(Service::Exchange, "slow-headers", "requests whose headers drip in"),
    on(Service::Exchange, "long-polls", "polls for a reserve that is never funded"),
    on(
        Service::Exchange,
        "unread-histories",
        "32 requests at a time for a long history, with no answer read",
    ),
    on(Service::Exchange, "unread-keys", "500 requests at a time for /keys, with no answer read"),
    on(
        Service::Exchange,
        "refused-histories",
        "withdrawals from an empty reserve whose long history proves each refusal",
    ),
    on(Service::Exchange, "large-bodies", "bodies of 15 MB"),
    on(Service::Exchange, "large-accounts", "unsigned deposits to payto URIs of 15 MB, each one different"),
    on(Service::Exchange, "copied-signatures", "60,000 copies of one valid signature of the master key"),
    on(Service::Exchange, "junk-connections", "connections that do not speak HTTP, one after another"),
    on(
        Service::Purses,
        "free-purses",
        "purses that ever new reserves ask for, with long lives and large contracts",
    ),
    on(Service::Purses, "purse-polls", "polls for a purse that nobody fills"),
    on(Service::Purses, "refused-merges", "merges of a purse into another reserve than its own"),
    on(Service::Kyc, "slow-proofs", "logins that the identity provider never confirms"),
    on(Service::Kyc, "kyc-starts", "identifications that begin: of ever new wallets, and of one"),
    on(Service::Kyc, "kyc-polls", "polls for an account that is never identified"),
    on(
        Service::Merchant,
        "slow-exchanges",
        "payments with coins of exchanges that nobody lists, each one different",
    ),
    on(Service::Merchant, "template-orders", "orders from the templates of all shops"),
    on(Service::Merchant, "token-guesses", "guesses of the shops' tokens, each one different"),
    on(
        Service::Merchant,
        "unread-documents",
        "200 requests at a time for /openapi.json, with no answer read",
    ),
    on(Service::Merchant, "order-polls", "polls for an order that nobody pays"),
    on(Service::Merchant, "slow-payments", "payments of 1 MB that start fast and then drip"),
    on(Service::Auditor, "junk-confirmations", "confirmations with wrong signatures, each one different"),
    on(Service::Auditor, "slow-confirmations", "confirmations that start fast and then drip"),
    on(Service::Auditor, "large-confirmations", "bodies of 15 MB"),
    on(Service::Feed, "silent-auditors", "connections that say nothing"),
    on(Service::Feed, "slow-handshakes", "handshakes of TLS that drip in"),
    on(Service::Feed, "junk-handshakes", "connections that do not speak TLS, one after another"),
    on(Service::Ledger, "large-frames", "frames of a megabyte that are announced, and not sent"),
    on(Service::Ledger, "silent-clients", "connections that say nothing"),
    on(Service::Ledger, "unread-transfers", "16 requests at a time for 8,189 transfers, with no answer read"),
];

/// The names of all attacks.
pub(super) fn names() -> Vec<&'static str> {
    ATTACKS.iter().map(|attack| attack.name).collect()
}

/// The attacks as the help describes them.
pub(super) fn help() -> String {
    let mut text = "Attacks, by the service and the honest load beside them:\n".to_owned();
    for service in Service::ALL {
        let _ = writeln!(text, "\n  {}: {} {} a second", service.name(), service.rate(), service.honest());
        for attack in ATTACKS.iter().filter(|attack| attack.service == service) {
            let _ = writeln!(text, "    {:<20} {}", attack.name, attack.text);
        }
    }
    text.push_str(
        "\nGoals during each attack: the honest client keeps 0.8 of its rate, and the attacked process uses at most 1 GiB.",
    );
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_attack_has_its_own_name_and_is_in_the_help() {
        let distinct: BTreeSet<&str> = names().into_iter().collect();
        assert_eq!(distinct.len(), ATTACKS.len());
        let help = help();
        for attack in &ATTACKS {
            assert!(help.contains(&format!("    {:<20} {}\n", attack.name, attack.text)), "{}", attack.name);
        }
        for service in Service::ALL {
            assert!(ATTACKS.iter().any(|attack| attack.service == service), "{}", service.name());
        }
    }
}
