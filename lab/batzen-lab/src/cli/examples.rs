//! Examples of commands whose arguments are defined elsewhere, or that share them with others. All other
//! commands have their examples beside their arguments.

use batzen_cli_support::examples::Examples;

/// The examples, by command.
pub(crate) const EXAMPLES: &Examples = &[
    (
        &["plan"],
        "batzen-lab plan --payments-per-second 100000 --coins 3 --years 3\n\
         batzen-lab plan --payments-per-second 500 --store postgres --measure --json",
    ),
    (
        &["up"],
        "batzen-lab up lab/topologies/one-machine.toml\nbatzen-lab up lab/topologies/town.toml --plan\n\
         batzen-lab up town.toml --dir town-1",
    ),
    (&["experiment"], "batzen-lab experiment lab/topologies/town.toml --dir town-1"),
    (&["provision"], "batzen-lab provision town.toml --package batzen_0.2.0_amd64.deb"),
    (
        &["sweep"],
        "batzen-lab sweep lab/topologies/far-database.toml --over rtt_ms=0,2,10,50\n\
         batzen-lab sweep lab/topologies/far-database.toml --over exchange.exchange.LANES=1,2,8 --dir lanes",
    ),
    (&["status"], "batzen-lab status\nbatzen-lab status --dir town-1 --json"),
    (&["down"], "batzen-lab down"),
    (&["scale"], "batzen-lab scale exchange 3\nbatzen-lab scale load 8 --dir town-1"),
    (&["upgrade"], "batzen-lab upgrade exchange-1 /opt/batzen-0.3/bin"),
    (
        &["disturb"],
        "batzen-lab disturb kill exchange-1\nbatzen-lab disturb cut second    cuts a site off\n\
         batzen-lab disturb slow postgres 0.1\nbatzen-lab disturb slow-disk postgres --delay-ms 20",
    ),
    (&["disturb", "kill"], "batzen-lab disturb kill exchange-1"),
    (&["disturb", "stop"], "batzen-lab disturb stop postgres"),
    (&["disturb", "start"], "batzen-lab disturb start postgres"),
    (&["disturb", "slow"], "batzen-lab disturb slow exchange-2 0.1"),
    (&["disturb", "slow-disk"], "batzen-lab disturb slow-disk postgres --delay-ms 20"),
    (&["disturb", "promote"], "batzen-lab disturb promote"),
    (&["disturb", "revoke"], "batzen-lab disturb revoke --share 0.5"),
    (&["disturb", "cut"], "batzen-lab disturb cut second"),
    (&["disturb", "heal"], "batzen-lab disturb heal second"),
    (&["disturb", "link"], "batzen-lab disturb link main second --rtt-ms 50 --loss 0.01"),
    (&["ssh"], "batzen-lab ssh db\nbatzen-lab ssh --dir town-1 db ss -tn"),
    (
        &["load"],
        "batzen-lab load start --wallets 50 --rate 20\nbatzen-lab load rate 40\nbatzen-lab load ramp --json",
    ),
    (
        &["load", "start"],
        "batzen-lab load start --wallets 50 --think-ms 2000\n\
         batzen-lab load start --rate 20 --mix pay=90,refund=5,send=5",
    ),
    (&["load", "stop"], "batzen-lab load stop"),
    (&["load", "scale"], "batzen-lab load scale 200"),
    (&["load", "rate"], "batzen-lab load rate 40\nbatzen-lab load rate free"),
    (&["load", "mix"], "batzen-lab load mix pay=1,send=1"),
    (&["load", "ramp"], "batzen-lab load ramp --from 5 --factor 1.5 --steps 12 --wallets 200"),
    (&["load", "show"], "batzen-lab load show --seconds 60 --json\nbatzen-lab load show --table"),
    (
        &["load", "bench"],
        "batzen-lab load bench deposit --duration 30 --clients 16\nbatzen-lab load bench pay -- --coins 3 --refunds 0\n\
         batzen-lab load bench ledger -- --transfers 1000000",
    ),
    (&["check"], "batzen-lab check --json"),
    (
        &["compare"],
        "batzen-lab compare town-1 town-2\nbatzen-lab compare before after --json --out compare.html",
    ),
    (
        &["cost"],
        "batzen-lab cost sweep\nbatzen-lab cost fronts --whole-hosts --prices prices.toml\n\
         batzen-lab cost one-front two-fronts.tar.gz --without bank,load,merchant --json",
    ),
    (
        &["logs"],
        "batzen-lab logs --instance exchange --since-s 30\nbatzen-lab logs 3f9c2a7e5b1d4086 --dir town-1",
    ),
    (&["pack"], "batzen-lab pack town-1\nbatzen-lab pack town-1 town.tar.zst"),
    (&["open"], "batzen-lab open town-1\nbatzen-lab open town-1 --prometheus\nbatzen-lab open town-1.tar.gz"),
    (
        &["bench", "lanes"],
        "batzen-lab bench lanes\nbatzen-lab bench lanes --lanes 1,2 --coins 500000 --dir /var/lib --json",
    ),
    (
        &["bench", "scale"],
        "batzen-lab bench scale\nbatzen-lab bench scale --cores 1,2,4 --batch 10 --rounds 5 --dir /var/lib --json > scale.json",
    ),
    (&["bench", "audit"], "batzen-lab bench audit --coins 100000"),
    (
        &["switch", "bench"],
        "batzen-lab switch bench --participants 8 --duration 10\n\
         batzen-lab switch bench --target http://10.0.0.7:8090/ --admin http://10.0.0.7:8091/ --tokens operators.txt",
    ),
    (&["shop"], "batzen-lab shop serve --backend http://localhost:9966/ --token-file shop.token"),
    (&["bench", "withdraw"], "batzen-lab bench withdraw --rsa 2048 --duration 10"),
    (&["bench", "startup"], "batzen-lab bench startup --store postgres"),
    (&["bench", "p2p"], "batzen-lab bench p2p --rsa 2048 --coins 3 --duration 10"),
    (
        &["bench", "pay"],
        "batzen-lab bench pay --coins 3 --duration 10\nbatzen-lab bench pay --rate 20 --refunds 0\n\
         batzen-lab bench pay --target http://127.0.0.1:8081/ --gateway http://127.0.0.1:8082/taler-wire-gateway/exchange/ \
         --merchant http://127.0.0.1:9966/instances/shop/ --token-file shop.token",
    ),
    (
        &["bench", "deposit"],
        "batzen-lab bench deposit --duration 10\nbatzen-lab bench deposit --rate 70% --with-workers --out my-deposit",
    ),
    (&["bench", "batch-deposit"], "batzen-lab bench batch-deposit --batch 10 --duration 10"),
    (&["bench", "refresh"], "batzen-lab bench refresh --fresh 3 --duration 10"),
    (&["bench", "mixed"], "batzen-lab bench mixed --rate 70% --duration 30m"),
    (&["bench", "cycle"], "batzen-lab bench cycle --clients 1 --duration 10"),
    (&["bench", "wirewatch"], "batzen-lab bench wirewatch"),
    (&["bench", "aggregator"], "batzen-lab bench aggregator"),
    (&["bench", "transfer"], "batzen-lab bench transfer"),
    (&["bench", "partitions"], "batzen-lab bench partitions --duration 10"),
    (
        &["bench", "hostile"],
        "batzen-lab bench hostile\nbatzen-lab bench hostile --service ledger --duration 5",
    ),
    (&["bench", "pgbench"], "batzen-lab bench pgbench"),
    (&["bench", "store"], "batzen-lab bench store"),
    (&["bench", "history"], "batzen-lab bench history --coins 50000000 --dir /var/tmp"),
    (&["bench"], "batzen-lab bench deposit --duration 10\nbatzen-lab bench compare before after"),
    (&["switch"], "batzen-lab switch demo --once\nbatzen-lab switch bench --participants 8 --duration 10"),
    (&["ledger"], "batzen-lab ledger bench --transfers 1000000"),
    (&["completions"], "batzen-lab completions bash > ~/.local/share/bash-completion/completions/batzen-lab"),
    (&["man"], "batzen-lab man --out ./man && man ./man/batzen-lab-bench.1"),
];
