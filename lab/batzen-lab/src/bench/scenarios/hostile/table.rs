//! The table of attacks: the service, the name and a description.

use std::fmt::Write as _;

use clap::ValueEnum;

use Service::{Auditor, Exchange, Feed, Kyc, Ledger, Merchant, Purses};

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
    pub(super) const ALL: [Self; 7] = [Exchange, Purses, Kyc, Merchant, Auditor, Feed, Ledger];

    pub(super) const fn name(self) -> &'static str {
        self.facts().0
    }

    /// The operations of the honest load.
    pub(super) const fn honest(self) -> &'static str {
        self.facts().1
    }

    /// Honest operations per second by default.
    pub(super) const fn rate(self) -> f64 {
        self.facts().2
    }

    const fn facts(self) -> (&'static str, &'static str, f64) {
        match self {
            Exchange => ("exchange", "payments", 200.0),
            Purses => ("purses", "purses", 50.0),
            Kyc => ("kyc", "identifications", 25.0),
            Merchant => ("merchant", "purchases, half of them from templates", 25.0),
            Auditor => ("auditor", "confirmations", 100.0),
            Feed => ("feed", "auditors that connect", 20.0),
            Ledger => ("ledger", "transfers, each over a new connection", 50.0),
        }
    }

    /// Connections of an attack by default. A ledger has more places than the others.
    pub(super) const fn connections(self) -> u32 {
        match self {
            Ledger => 3_000,
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
    on(Exchange, "slow-uploads", "large bodies that start fast and then drip, one byte per second"),
    on(Exchange, "slow-headers", "requests whose headers drip in"),
    on(Exchange, "long-polls", "polls for a reserve that is never funded"),
    on(Exchange, "unread-histories", "32 requests at a time for a long history, with no answer read"),
    on(Exchange, "unread-keys", "500 requests at a time for /keys, with no answer read"),
    on(
        Exchange,
        "refused-histories",
        "withdrawals from an empty reserve whose long history proves each refusal",
    ),
    on(Exchange, "large-bodies", "bodies of 15 MB"),
    on(Exchange, "large-accounts", "unsigned deposits to payto URIs of 15 MB, each one different"),
    on(Exchange, "copied-signatures", "60,000 copies of one valid signature of the master key"),
    on(Exchange, "junk-connections", "connections that do not speak HTTP, one after another"),
    on(Purses, "free-purses", "purses that ever new reserves ask for, with long lives and large contracts"),
    on(Purses, "purse-polls", "polls for a purse that nobody fills"),
    on(Purses, "refused-merges", "merges of a purse into another reserve than its own"),
    on(Kyc, "slow-proofs", "logins that the identity provider never confirms"),
    on(Kyc, "kyc-starts", "identifications that begin: of ever new wallets, and of one"),
    on(Kyc, "kyc-polls", "polls for an account that is never identified"),
    on(Merchant, "slow-exchanges", "payments with coins of exchanges that nobody lists, each one different"),
    on(Merchant, "template-orders", "orders from the templates of all shops"),
    on(Merchant, "token-guesses", "guesses of the shops' tokens, each one different"),
    on(Merchant, "unread-documents", "200 requests at a time for /openapi.json, with no answer read"),
    on(Merchant, "order-polls", "polls for an order that nobody pays"),
    on(Merchant, "slow-payments", "payments of 1 MB that start fast and then drip"),
    on(Auditor, "junk-confirmations", "confirmations with wrong signatures, each one different"),
    on(Auditor, "slow-confirmations", "confirmations that start fast and then drip"),
    on(Auditor, "large-confirmations", "bodies of 15 MB"),
    on(Feed, "silent-auditors", "connections that say nothing"),
    on(Feed, "slow-handshakes", "handshakes of TLS that drip in"),
    on(Feed, "junk-handshakes", "connections that do not speak TLS, one after another"),
    on(Ledger, "large-frames", "frames of a megabyte that are announced, and not sent"),
    on(Ledger, "silent-clients", "connections that say nothing"),
    on(Ledger, "unread-transfers", "16 requests at a time for 8,189 transfers, with no answer read"),
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
