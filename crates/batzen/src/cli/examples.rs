//! Examples of commands whose arguments are defined elsewhere, or that share them with others. All other
//! commands have their examples beside their arguments.

use clap::Command;

/// The words of a command, and its examples, one a line.
const EXAMPLES: &[(&[&str], &str)] = &[
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
        &["plan"],
        "batzen plan --payments-per-second 100000 --coins 3 --years 3\n\
         batzen plan --payments-per-second 500 --store postgres --measure --json",
    ),
    (
        &["bench", "lanes"],
        "batzen bench lanes\nbatzen bench lanes --lanes 1,2 --coins 500000 --dir /var/lib --json",
    ),
    (
        &["bench", "scale"],
        "batzen bench scale\nbatzen bench scale --cores 1,2,4 --batch 10 --rounds 5 --dir /var/lib --json > scale.json",
    ),
    (&["bench", "audit"], "batzen bench audit --coins 100000"),
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
    (&["switch"], "batzen switch demo --once\nbatzen switch serve --config switch.conf"),
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
    (&["switch", "bench"], "batzen switch bench --participants 8 --duration 10"),
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
    (&["shop"], "batzen shop serve --backend http://localhost:9966/ --token-file shop.token"),
    (&["bench", "withdraw"], "batzen bench withdraw --rsa 2048 --duration 10"),
    (&["bench", "startup"], "batzen bench startup --store postgres"),
    (&["bench", "p2p"], "batzen bench p2p --rsa 2048 --coins 3 --duration 10"),
    (&["bench", "pay"], "batzen bench pay --coins 3 --duration 10\nbatzen bench pay --rate 20 --refunds 0"),
    (
        &["bench", "deposit"],
        "batzen bench deposit --duration 10\nbatzen bench deposit --rate 70% --with-workers --out my-deposit",
    ),
    (&["bench", "batch-deposit"], "batzen bench batch-deposit --batch 10 --duration 10"),
    (&["bench", "refresh"], "batzen bench refresh --fresh 3 --duration 10"),
    (&["bench", "mixed"], "batzen bench mixed --rate 70% --duration 30m"),
    (&["bench", "cycle"], "batzen bench cycle --clients 1 --duration 10"),
    (&["bench", "wirewatch"], "batzen bench wirewatch"),
    (&["bench", "aggregator"], "batzen bench aggregator"),
    (&["bench", "transfer"], "batzen bench transfer"),
    (&["bench", "partitions"], "batzen bench partitions --duration 10"),
    (&["bench", "hostile"], "batzen bench hostile"),
    (&["bench", "pgbench"], "batzen bench pgbench"),
    (&["bench", "store"], "batzen bench store"),
    (&["bench", "history"], "batzen bench history --coins 50000000 --dir /var/tmp"),
    (&["bench"], "batzen bench deposit --duration 10\nbatzen bench compare before after"),
];

/// Adds the examples to the help of the commands.
///
/// # Panics
/// If there is no such command.
pub fn add(mut command: Command) -> Command {
    for (words, examples) in EXAMPLES {
        command = add_to(command, words, examples);
    }
    command
}

fn add_to(command: Command, words: &[&'static str], examples: &str) -> Command {
    let Some((first, rest)) = words.split_first() else {
        let lines: String = examples.lines().map(|line| format!("\n  {line}")).collect();
        let before = command.get_after_help().map(|help| format!("{help}\n\n")).unwrap_or_default();
        return command.after_help(format!("{before}Examples:{lines}"));
    };
    assert!(command.find_subcommand(first).is_some(), "there is no command {first}");
    command.mut_subcommand(first, |command| add_to(command, rest, examples))
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    /// All commands that are shown, with their words.
    fn visit(command: &Command, words: &str, check: &mut impl FnMut(&str, String)) {
        let help = [command.get_after_help(), command.get_after_long_help()];
        check(words, help.into_iter().flatten().map(ToString::to_string).collect());
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            visit(command, &format!("{words} {}", command.get_name()), check);
        }
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let mut examples = Vec::new();
        visit(&crate::command(), "batzen", &mut |words, help| {
            let lines: Vec<String> = help
                .lines()
                .map(|line| line.trim().to_owned())
                .filter(|line| line.starts_with("batzen ") || line.starts_with("for "))
                .collect();
            assert!(!lines.is_empty(), "{words} has no example:\n{help}");
            examples.extend(lines);
        });
        for line in examples.iter().filter(|line| line.starts_with("batzen ")) {
            let end =
                [" > ", " < ", " | ", " && ", "; ", "    "].iter().filter_map(|end| line.find(end)).min();
            let command = line[..end.unwrap_or(line.len())].trim();
            let words = split(command);
            // A word in capitals stands for a value, which need not be valid.
            let has_placeholder = words.iter().any(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()));
            match crate::command().try_get_matches_from(words) {
                Err(error) if has_placeholder && error.kind() == ErrorKind::ValueValidation => {}
                Err(error) => panic!("{line}: {error}"),
                Ok(_) => {}
            }
        }
        assert!(examples.len() > 60, "{}", examples.len());
    }

    /// The words of a shell command with single quotes.
    fn split(command: &str) -> Vec<String> {
        let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
        for letter in command.chars() {
            match letter {
                '\'' | '"' => is_quoted = !is_quoted,
                ' ' if !is_quoted => {
                    words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                }
                other => word.push(other),
            }
        }
        words.extend(Some(word).filter(|word| !word.is_empty()));
        words
    }
}
