//! Starts a Citus cluster, prints the address of its coordinator, and stops it at the end of its input.

use batzen_testkit::postgres::{CITUS_MISSING, CitusCluster, ClusterOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if !CitusCluster::is_installed() {
        println!("{CITUS_MISSING}");
        return Ok(());
    }
    let workers = std::env::args().nth(1).map_or(Ok(2), |count| count.parse())?;
    let cluster = CitusCluster::start(workers, &ClusterOptions::unsynced())?;
    println!("{}", cluster.create_database("citus")?);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
