//! Examples of commands whose arguments are defined elsewhere, or that share them with others. All other
//! commands have their examples beside their arguments.

use batzen_cli_support::examples::Examples;

/// The examples, by command.
pub(crate) const EXAMPLES: &Examples = &[
    (&["bank"], "batzen bank serve --currency KUDOS --data ./bank"),
    (&["bank", "totals"], "batzen bank totals --config bank.conf\nbatzen bank totals ./bank --json"),
    (
        &["bank", "gateway"],
        "batzen bank gateway --url http://localhost:8082/taler-wire-gateway/exchange/ incoming",
    ),
    (
        &["bank", "gateway", "incoming"],
        "batzen bank gateway --url http://localhost:8082/taler-wire-gateway/exchange/ incoming --start 100",
    ),
    (
        &["bank", "gateway", "outgoing"],
        "batzen bank gateway --url http://localhost:8082/taler-wire-gateway/exchange/ outgoing",
    ),
    (
        &["bank", "gateway", "transfer"],
        "batzen bank gateway --url http://localhost:8082/taler-wire-gateway/exchange/ transfer KUDOS:5 \
         'payto://x-taler-bank/localhost/zoe?receiver-name=zoe'",
    ),
    (
        &["bank", "gateway", "add-incoming"],
        "batzen bank gateway --url http://localhost:8082/taler-wire-gateway/exchange/ add-incoming KUDOS:5 \
         'payto://x-taler-bank/localhost/zoe?receiver-name=zoe'",
    ),
    (&["bank", "sample-config"], "batzen bank sample-config > bank.conf"),
    (
        &["exchange"],
        "batzen exchange serve --config exchange.conf\nbatzen exchange totals --config exchange.conf",
    ),
    (
        &["exchange", "offline"],
        "batzen exchange offline --config exchange.conf download sign upload\n\
         batzen exchange offline --config exchange.conf calendar",
    ),
    (
        &["exchange", "wirewatch"],
        "batzen exchange wirewatch --config exchange.conf\nbatzen exchange wirewatch --config exchange.conf --test",
    ),
    (&["exchange", "aggregator"], "batzen exchange aggregator --config exchange.conf --test"),
    (&["exchange", "transfer"], "batzen exchange transfer --config exchange.conf --test"),
    (&["exchange", "expire"], "batzen exchange expire --config exchange.conf --test"),
    (&["exchange", "liabilities"], "batzen exchange liabilities --config exchange.conf --test"),
    (&["exchange", "kyc", "officer"], "batzen exchange kyc officer alice --token-file alice.token"),
    (
        &["exchange", "kyc", "cases"],
        "batzen exchange kyc cases --exchange http://localhost:8081/ --token-file alice.token",
    ),
    (
        &["exchange", "kyc", "show"],
        "batzen exchange kyc show -c exchange.conf --token-file alice.token \
         2T256N96NKYQDHKGMAAW2SJJXPAD0P0V25MRM54MC544N3VXJBP0",
    ),
    (
        &["exchange", "kyc", "approve"],
        "batzen exchange kyc approve -c exchange.conf --token-file alice.token --reason seen-passport \
         2T256N96NKYQDHKGMAAW2SJJXPAD0P0V25MRM54MC544N3VXJBP0",
    ),
    (
        &["exchange", "kyc", "reject"],
        "batzen exchange kyc reject -c exchange.conf --token-file alice.token --reason unreadable \
         2T256N96NKYQDHKGMAAW2SJJXPAD0P0V25MRM54MC544N3VXJBP0",
    ),
    (&["exchange", "closer"], "batzen exchange closer --config exchange.conf --test"),
    (&["exchange", "drain"], "batzen exchange drain --config exchange.conf --test"),
    (&["exchange", "maintain"], "batzen exchange maintain --config exchange.conf"),
    (
        &["exchange", "totals"],
        "batzen exchange totals --config exchange.conf\nbatzen exchange totals ./exchange --json",
    ),
    (
        &["exchange", "sample-config"],
        "batzen exchange sample-config > exchange.conf\nbatzen exchange sample-config --system > /etc/batzen/exchange.conf",
    ),
    (
        &["auditor"],
        "batzen auditor init --config auditor.conf\nbatzen auditor sync --config auditor.conf --once\n\
         batzen auditor run --config auditor.conf",
    ),
    (&["signer"], "batzen signer serve --config signer.conf\nbatzen signer status --config signer.conf"),
    (&["signer", "keygen"], "batzen signer keygen ./signer.key"),
    (&["signer", "sample-config"], "batzen signer sample-config > signer.conf"),
    (&["signer", "status"], "batzen signer status --config signer.conf --json"),
    (&["signer", "promote"], "batzen signer promote --config signer.conf"),
    (&["switch"], "batzen switch serve --config switch.conf"),
    (&["switch", "sample-config"], "batzen switch sample-config > switch.conf"),
    (&["ledger"], "batzen ledger serve --data ./ledger\nbatzen ledger client lookup-accounts 1 2"),
    (&["ledger", "sample-config"], "batzen ledger sample-config > ledger.conf"),
    (&["ledger", "repl"], "batzen ledger repl --ledger tcp://127.0.0.1:3001"),
    (&["ledger", "inspect"], "batzen ledger inspect ./ledger"),
    (&["ledger", "verify"], "batzen ledger verify ./ledger --json"),
    (&["ledger", "backup"], "batzen ledger backup ./ledger ./ledger-backup"),
    (&["ledger", "restore"], "batzen ledger restore ./ledger-backup ./ledger"),
    (&["store"], "batzen store verify ./exchange/store"),
    (&["store", "verify"], "batzen store verify ./exchange/store --json"),
    (&["store", "inspect"], "batzen store inspect ./exchange/store --frames"),
    (&["store", "cut"], "batzen store cut ./exchange/store --reason 'disk failure of 3 May, no backup'"),
    (&["doctor", "watch"], "batzen doctor watch --database postgres:///exchange"),
    (&["merchant"], "batzen merchant serve --config merchant.conf"),
    (&["merchant", "sample-config"], "batzen merchant sample-config > merchant.conf"),
    (&["auditor", "sample-config"], "batzen auditor sample-config > auditor.conf"),
    (&["auditor", "report"], "batzen auditor report --config auditor.conf --html audit.html"),
    (
        &["auditor", "suppress"],
        "batzen auditor suppress --config auditor.conf NUMBER --reason 'the bank has confirmed it'",
    ),
    (
        &["auditor", "reopen"],
        "batzen auditor reopen --config auditor.conf NUMBER --reason 'it was the wrong transfer'",
    ),
    (&["auditor", "exchange"], "batzen auditor exchange list --config auditor.conf"),
    (
        &["auditor", "offline"],
        "batzen auditor offline --config auditor.conf download sign upload\n\
         batzen auditor offline --config auditor.conf download show",
    ),
    (&["completions"], "batzen completions bash > ~/.local/share/bash-completion/completions/batzen"),
    (&["man"], "batzen man --out ./man && man ./man/batzen-exchange.1"),
];
