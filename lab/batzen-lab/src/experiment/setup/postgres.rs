//! PostgreSQL: the primary, and a standby that has each commit before it is acknowledged.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;

use super::{PATIENCE, POSTGRES_USER, SUPERUSER, SetUp};
use crate::experiment::agent::CommandLine;
use crate::experiment::placement::Instance;
use crate::experiment::topology::Role;

impl SetUp<'_> {
    /// The directory of PostgreSQL's programs on a host.
    pub(super) fn postgres_bin(&mut self, instance: &Instance) -> anyhow::Result<String> {
        const FIND: &str =
            "ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1 | grep . || pg_config --bindir";
        let found = self
            .agent(instance)?
            .run(CommandLine::new(["sh", "-c", FIND]))
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

    /// The addresses of the exchange's database, the primary's first.
    pub(super) fn database_url(&self) -> Option<String> {
        let servers: Vec<String> = [Role::Postgres, Role::Standby]
            .into_iter()
            .flat_map(|role| self.experiment.of(role))
            .map(|instance| instance.authority())
            .collect();
        (!servers.is_empty()).then(|| {
            let password = &self.experiment.state.password;
            format!(
                "postgres://{SUPERUSER}:{password}@{}/exchange?target_session_attrs=read-write",
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
        for (name, value) in instance.settings.get("postgresql").into_iter().flatten() {
            let _ = writeln!(settings, "{name} = '{}'", value.replace('\'', "''"));
        }
        self.append(instance, &format!("{data}/postgresql.conf"), &settings)?;
        let access = "host all all all scram-sha-256\nhost replication all all scram-sha-256\n";
        self.append(instance, &format!("{data}/pg_hba.conf"), access)?;
        self.serve_postgres(instance, &bin, &dir)?;
        self.sql(instance, "postgres", "CREATE DATABASE exchange")
    }

    pub(super) fn serve_postgres(&mut self, instance: &Instance, bin: &str, dir: &str) -> anyhow::Result<()> {
        let command =
            CommandLine::new([&format!("{bin}/postgres"), "-D", &format!("{dir}/data")]).by(POSTGRES_USER);
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
        self.sql(&primary, "postgres", "SELECT pg_reload_conf()")
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
