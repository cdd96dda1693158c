//! The bank's dashboard.

use batzen_service::dashboard::Bad::Never;
use batzen_service::dashboard::Lines::Named;
use batzen_service::dashboard::Unit::{Count, Money};
use batzen_service::dashboard::{
    BATCHES, Extra, Layout, NOW, OPERATIONS, PROCESS, STORE, Section, chart, gauge, tile,
};

/// The dashboard.
pub const DASHBOARD: Layout = Layout {
    sections: &[&NOW, &BANK, &OPERATIONS, &BATCHES, &STORE, &PROCESS],
    work: &["transfer", "add-incoming", "withdrawal", "account"],
};

const BANK: Section = Section {
    id: "bank",
    title: "Accounts and money",
    needs: "batzen_bank_accounts",
    tiles: &[
        tile("bank-accounts", "accounts", Count, gauge("batzen_bank_accounts"), Never),
        tile("bank-total", "in accounts", Money, gauge("batzen_bank_money_held"), Never),
        tile("bank-debt", "owed by overdrawn accounts", Money, gauge("batzen_bank_money_debt"), Never),
        tile(
            "bank-set-aside",
            "set aside for withdrawals",
            Money,
            gauge("batzen_bank_money_set_aside"),
            Never,
        ),
        tile(
            "bank-intents",
            "movements waiting for the ledger",
            Count,
            gauge("batzen_bank_intents_open"),
            Never,
        ),
    ],
    charts: &[chart(
        "bank-money",
        "Money in accounts",
        "Sums over all accounts, added up every ten seconds (less often on a large bank).",
        Money,
        Named(&[
            ("in accounts", gauge("batzen_bank_money_held")),
            ("owed by overdrawn accounts", gauge("batzen_bank_money_debt")),
            ("set aside", gauge("batzen_bank_money_set_aside")),
        ]),
    )],
    extra: Extra::None,
};
