//! Standbys.

use crate::postgres::cluster::SUPERUSER;
use crate::postgres::process::wait_until;
use crate::postgres::{Cluster, ClusterError};

impl Cluster {
    /// Creates a standby of this server from a base backup; it follows by streaming replication. A
    /// synchronous standby has every commit on disk before the commit is acknowledged.
    ///
    /// # Errors
    /// It cannot be created, or does not catch up.
    pub fn standby(&self, name: &str, is_synchronous: bool) -> Result<Self, ClusterError> {
        let mut standby = Self::prepare(None)?;
        standby.take_password_of(self);
        let primary = format!(
            "host={} port={} user={SUPERUSER} application_name={name}",
            self.socket_dir().display(),
            self.port()
        );
        standby.run(
            "pg_basebackup",
            self.installation
                .command("pg_basebackup")
                .args(["--dbname", &primary, "--pgdata"])
                .arg(standby.data_dir())
                .args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"])
                .args(["--create-slot", "--slot", name]),
        )?;
        standby.launch_on_free_port()?;
        if is_synchronous {
            self.set("synchronous_standby_names", &format!("\"{name}\""))?;
        }
        let wanted = if is_synchronous { "sync" } else { "async" };
        let state = format!("SELECT sync_state FROM pg_stat_replication WHERE application_name = '{name}'");
        wait_until("the standby's catching up", || Ok(self.sql(SUPERUSER, &state)? == wanted))?;
        Ok(standby)
    }

    /// Promotes a standby. The old primary must be down by then; otherwise both accept writes.
    ///
    /// # Errors
    /// It is not a standby.
    pub fn promote(&self) -> Result<(), ClusterError> {
        self.sql(SUPERUSER, "SELECT pg_promote(true, 60)")?;
        wait_until("the promotion", || Ok(self.sql(SUPERUSER, "SELECT pg_is_in_recovery()")? == "f"))
    }
}
