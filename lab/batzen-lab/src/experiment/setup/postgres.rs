//! PostgreSQL: the primary, a standby that has each commit before it is acknowledged, and the nodes of a Citus cluster.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;

use super::{DATABASE, PATIENCE, POSTGRES_USER, SUPERUSER, SetUp};
use crate::experiment::agent::CommandLine;
use crate::experiment::hosts::{CITUS_MISSING, FIND_POSTGRES, find_citus};
use crate::experiment::placement::Instance;
use crate::experiment::topology::Role;

/// The settings of every node of a Citus cluster, as docs/postgresql.md#citus has them. Packages of Citus tell its makers that they
/// are used, unless they are told not to.
const CITUS_SETTINGS: &str = "shared_preload_libraries = 'citus'\nmax_prepared_transactions = 300\n\
     citus.recover_2pc_interval = 1s\ncitus.node_conninfo = 'sslmode=prefer'\n\
     citus.enable_statistics_collection = off\n";

/// The file with the password by which nodes of a Citus cluster log in to one another.
fn logins_of(dir: &str) -> String {
    format!("{dir}/pgpass")
}

impl SetUp<'_> {
    /// The directory of PostgreSQL's programs on a host.
    pub(super) fn postgres_bin(&mut self, instance: &Instance) -> anyhow::Result<String> {
        let found = self
            .agent(instance)?
            .run(CommandLine::new(["sh", "-c", FIND_POSTGRES]))
            .context("PostgreSQL is not installed there (apt-get install postgresql)")?;
        Ok(found.trim().to_owned())
    }

    /// Makes the directory of a server, which belongs to the user who runs it.
    pub(super) fn postgres_dir(&mut self, instance: &Instance) -> anyhow::Result<String> {
        let dir = self.scratch(instance)?.to_string_lossy().into_owned();
        let script =
            "mkdir -p \"$1\" && { [ \"$(id -u)\" != 0 ] || chown \"$2\" \"$1\"; } && chmod 700 \"$1\"";
        let command = CommandLine::new(["sh", "-c", script, "sh", &dir, POSTGRES_USER]);
        self.agent(instance)?.run(command)?;
        Ok(dir)
    }

    pub(super) fn append(&mut self, instance: &Instance, file: &str, text: &str) -> anyhow::Result<()> {
        let command = CommandLine::new(["sh", "-c", "cat >> \"$1\"", "sh", file]).by(POSTGRES_USER);
        self.agent(instance)?.run_with(command, text).map(drop)
    }

    /// The addresses of the exchange's database: the primary's and the standby's, or the coordinator's.
    pub(super) fn database_url(&self) -> Option<String> {
        let of = |role| self.experiment.of(role).into_iter();
        let servers = of(Role::Postgres).chain(of(Role::Standby)).chain(of(Role::Citus).take(1));
        let servers: Vec<String> = servers.map(|instance| instance.authority()).collect();
        (!servers.is_empty()).then(|| {
            let password = &self.experiment.state.password;
            format!(
                "postgres://{SUPERUSER}:{password}@{}/{DATABASE}?target_session_attrs=read-write",
                servers.join(",")
            )
        })
    }

    pub(super) fn start_postgres(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let (bin, dir) = (self.postgres_bin(instance)?, self.postgres_dir(instance)?);
        let data = format!("{dir}/data");
        let password_file = format!("{dir}/password");
        let password = format!("{}\n", self.experiment.state.password);
        self.agent(instance)?.put_for(Path::new(&password_file), &password, Some(POSTGRES_USER))?;
        let password_option = format!("--pwfile={password_file}");
        let initdb = [&format!("{bin}/initdb"), "-D", &data, "-U", SUPERUSER, "-E", "UTF8", "--no-locale"];
        let auth = ["--no-instructions", "--auth-local=trust", "--auth-host=scram-sha-256", &password_option];
        let command = CommandLine::new(initdb.into_iter().chain(auth)).by(POSTGRES_USER);
        self.agent(instance)?.run(command)?;
        let mut settings = format!(
            "port = {}\nlisten_addresses = '{}'\nunix_socket_directories = '{dir}'\nwal_level = logical\n\
             max_connections = 300\nsynchronous_commit = on\nlog_timezone = UTC\n",
            instance.port(),
            instance.address
        );
        if instance.role == Role::Citus {
            let logins = format!("*:*:*:{SUPERUSER}:{password}");
            self.agent(instance)?.put_for(Path::new(&logins_of(&dir)), &logins, Some(POSTGRES_USER))?;
            settings.push_str(CITUS_SETTINGS);
            let _ = writeln!(settings, "citus.local_hostname = '{}'", instance.address);
        }
        for (name, value) in instance.settings.get("postgresql").into_iter().flatten() {
            let _ = writeln!(settings, "{name} = '{}'", value.replace('\'', "''"));
        }
        self.append(instance, &format!("{data}/postgresql.conf"), &settings)?;
        let access = "host all all all scram-sha-256\nhost replication all all scram-sha-256\n";
        self.append(instance, &format!("{data}/pg_hba.conf"), access)?;
        self.serve_postgres(instance, &bin, &dir)?;
        self.sql(instance, "postgres", &format!("CREATE DATABASE {DATABASE}"))?;
        if instance.role == Role::Citus {
            self.join_citus(instance)?;
        }
        self.export_postgres(instance, &dir)
    }

    /// Adds a node to the Citus cluster. The first one is its coordinator.
    fn join_citus(&mut self, instance: &Instance) -> anyhow::Result<()> {
        self.sql(instance, DATABASE, "CREATE EXTENSION citus")?;
        let coordinator = self.experiment.of(Role::Citus).remove(0);
        let join = if instance.index == 0 { "citus_set_coordinator_host" } else { "citus_add_node" };
        let sql = format!("SELECT {join}('{}', {})", instance.address, instance.port());
        self.sql(&coordinator, DATABASE, &sql)
    }

    /// Checks that the hosts of a Citus cluster have the extension; those of other machines were not asked before.
    pub(super) fn require_citus(&mut self) -> anyhow::Result<()> {
        for node in self.experiment.of(Role::Citus) {
            let command = CommandLine::new(["sh", "-c", &find_citus()]);
            self.agent(&node)?.run(command).with_context(|| format!("{}: {CITUS_MISSING}", node.host))?;
        }
        Ok(())
    }

    pub(super) fn serve_postgres(&mut self, instance: &Instance, bin: &str, dir: &str) -> anyhow::Result<()> {
        let mut command =
            CommandLine::new([&format!("{bin}/postgres"), "-D", &format!("{dir}/data")]).by(POSTGRES_USER);
        if instance.role == Role::Citus {
            command.env.insert("PGPASSFILE".to_owned(), logins_of(dir));
        }
        self.start_process(instance, &instance.name.clone(), command)?;
        let deadline = Instant::now() + PATIENCE;
        let asks = [&format!("{bin}/pg_isready"), "-q", "-h", dir, "-p", &instance.port().to_string()];
        while self.agent(instance)?.run(CommandLine::new(asks)).is_err() {
            self.require_running(instance)?;
            self.go_on(deadline, "PostgreSQL does not become ready")?;
        }
        Ok(())
    }

    pub(super) fn sql(&mut self, instance: &Instance, database: &str, sql: &str) -> anyhow::Result<()> {
        let (bin, dir) = (self.postgres_bin(instance)?, self.scratch(instance)?);
        let (psql, port) = (format!("{bin}/psql"), instance.port().to_string());
        let words =
            [&psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", SUPERUSER, "-h", &dir.to_string_lossy()];
        let words = words.into_iter().chain(["-p", &port, "-d", database, "-c", sql]);
        self.agent(instance)?.run(CommandLine::new(words)).map(drop)
    }

    pub(super) fn start_standby(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let primary = self.experiment.of(Role::Postgres).pop().context("a standby needs a primary")?;
        let (bin, dir) = (self.postgres_bin(instance)?, self.postgres_dir(instance)?);
        let source = format!(
            "host={} port={} user={SUPERUSER} application_name=standby",
            primary.address,
            primary.port()
        );
        let (program, data) = (format!("{bin}/pg_basebackup"), format!("{dir}/data"));
        let words =
            [&program, "-d", &source, "-D", &data, "-R", "-X", "stream", "-C", "-S", "standby", "-c", "fast"];
        let mut command = CommandLine::new(words).by(POSTGRES_USER);
        command.env.insert("PGPASSWORD".to_owned(), self.experiment.state.password.clone());
        self.agent(instance)?.run(command)?;
        let settings = format!(
            "port = {}\nlisten_addresses = '{}'\nunix_socket_directories = '{dir}'\n",
            instance.port(),
            instance.address
        );
        self.append(instance, &format!("{data}/postgresql.conf"), &settings)?;
        self.serve_postgres(instance, &bin, &dir)?;
        self.sql(&primary, "postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'")?;
        self.sql(&primary, "postgres", "SELECT pg_reload_conf()")?;
        self.export_postgres(instance, &dir)
    }

    /// Makes the standby the primary.
    ///
    /// # Errors
    /// When there is none, or it refuses.
    pub(in crate::experiment) fn promote(&mut self) -> anyhow::Result<()> {
        let standby = self.experiment.of(Role::Standby).pop().context("the topology has no standby")?;
        // The new primary has no standby to wait for.
        self.sql(&standby, "postgres", "SELECT pg_promote()")?;
        self.sql(&standby, "postgres", "ALTER SYSTEM RESET synchronous_standby_names")?;
        self.sql(&standby, "postgres", "SELECT pg_reload_conf()")?;
        self.experiment.event("promote", &standby.name)
    }
}
