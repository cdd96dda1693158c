//! Exporters: well-known programs that show Prometheus what PostgreSQL and nginx know of themselves. They run beside an instance
//! if the topology has the role `prometheus`, and belong to none, so that what happens to the instance does not happen to them.

use std::path::Path;

use anyhow::Context as _;

use super::{DATABASE, POSTGRES_USER, SUPERUSER, SetUp};
use crate::experiment::agent::CommandLine;
use crate::experiment::placement::{Instance, metrics_authority};
use crate::experiment::topology::Role;

/// Queries of the exporter of PostgreSQL beside its own.
const QUERIES: &str = include_str!("../../../../../deploy/prometheus/postgres-queries.yml");
/// The program by which mtail reads the times in the proxy's log.
const TIMES: &str = include_str!("../../../../../deploy/prometheus/nginx-times.mtail");
/// The path at which nginx tells its exporter how it is.
pub(super) const STATUS: &str = "/stub_status";

/// The name and the address of the page with the times of a proxy.
pub(super) fn times_page(instance: &Instance) -> Option<(String, String)> {
    let port = instance.ports.get(2).filter(|_| instance.role == Role::Proxy)?;
    Some((format!("{}-times", instance.name), format!("{}:{port}", instance.address)))
}

impl SetUp<'_> {
    /// Starts a program beside an instance, under the first of its names that is installed, and waits until it listens.
    fn export(
        &mut self,
        instance: &Instance,
        (name, page): (&str, &str),
        (names, package): ([&str; 2], &str),
        mut command: CommandLine,
    ) -> anyhow::Result<()> {
        let script = names.map(|name| format!("command -v {name}")).join(" || ");
        let found = self.agent(instance)?.run(CommandLine::new(["sh", "-c", &script]));
        let found = found.with_context(|| {
            format!(
                "Prometheus records it with {}, which is not installed there (apt-get install {package})",
                names[0]
            )
        })?;
        command.argv.insert(0, found.trim().to_owned());
        self.start_process(instance, name, command)?;
        self.wait_listening(instance, page)
    }

    /// Starts the exporter of a server of PostgreSQL. `dir` has the server's socket.
    pub(super) fn export_postgres(&mut self, instance: &Instance, dir: &str) -> anyhow::Result<()> {
        let names = instance.exporters();
        let [name] = &names[..] else { return Ok(()) };
        let page = metrics_authority(instance).context("an exporter has a page")?;
        let queries = format!("{dir}/queries.yml");
        self.agent(instance)?.put_for(Path::new(&queries), QUERIES, Some(POSTGRES_USER))?;
        let words = [
            format!("--web.listen-address={page}"),
            // Hundreds of numbers that never change.
            "--disable-settings-metrics".to_owned(),
            format!("--extend.query-path={queries}"),
        ];
        let mut command = CommandLine::new(words).by(POSTGRES_USER);
        let source =
            format!("host={dir} port={} user={SUPERUSER} dbname={DATABASE} sslmode=disable", instance.port());
        command.env.insert("DATA_SOURCE_NAME".to_owned(), source);
        let program = (["prometheus-postgres-exporter", "postgres_exporter"], "prometheus-postgres-exporter");
        self.export(instance, (name, &page), program, command)
    }

    /// Starts the exporters of the proxy: what it counts itself, and the times in its log.
    pub(super) fn export_proxy(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let names = instance.exporters();
        let [exporter, times] = &names[..] else { return Ok(()) };
        let page = metrics_authority(instance).context("an exporter has a page")?;
        let words = [
            format!("--nginx.scrape-uri=http://127.0.0.1:{}{STATUS}", instance.ports[3]),
            format!("--web.listen-address={page}"),
        ];
        let program =
            (["prometheus-nginx-exporter", "nginx-prometheus-exporter"], "prometheus-nginx-exporter");
        self.export(instance, (exporter, &page), program, CommandLine::new(words))?;
        let dir = self.dir(instance)?;
        let reader = dir.join("times.mtail");
        self.agent(instance)?.put(&reader, TIMES)?;
        let (_, page) = times_page(instance).context("the times have a page")?;
        let words = [
            format!("--progs={}", reader.display()),
            format!("--logs={}", dir.join("out").display()),
            format!("--address={}", instance.address),
            format!("--port={}", instance.ports[2]),
            "--emit_prog_label=false".to_owned(),
            "--logtostderr".to_owned(),
        ];
        self.export(instance, (times, &page), (["mtail", "mtail"], "mtail"), CommandLine::new(words))
    }
}
