//! pod-attach: attaches a pod like a container runtime, for experiments.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use knit_kni::{Client, DEFAULT_SOCKET, v1};

/// Create the network namespace of a pod and attach `eth0` to it, or delete both
#[derive(Debug, Parser)]
#[command(name = "pod-attach")]
struct Flags {
    /// Name of the pod
    name: String,
    /// Delete the pod
    #[arg(long)]
    delete: bool,
    /// Socket of the agent
    #[arg(long, env = "KNIT_KNI_SOCKET", default_value = DEFAULT_SOCKET)]
    kni_socket: PathBuf,
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(flags))
}

async fn run(flags: Flags) -> Result<()> {
    let mut client = Client::connect(&flags.kni_socket).await?;
    let pod = v1::PodRef { id: flags.name.clone(), ..Default::default() };
    if flags.delete {
        client.delete_sandbox(v1::DeleteSandboxRequest { pod: Some(pod) }).await?;
        println!("{}: deleted", flags.name);
        return Ok(());
    }
    let sandbox = v1::SandboxSpec {
        id: flags.name.clone(),
        name: flags.name.clone(),
        namespace: "default".to_owned(),
        ..Default::default()
    };
    let create = v1::CreateSandboxRequest { sandbox: Some(sandbox.clone()), ..Default::default() };
    client.create_sandbox(create).await?;
    let response = client.attach(v1::AttachRequest { sandbox: Some(sandbox), ..Default::default() }).await;
    if response.is_err() {
        // The namespace was created for this attach.
        client.delete_sandbox(v1::DeleteSandboxRequest { pod: Some(pod) }).await?;
    }
    let pod = response?.pod.unwrap_or_default();
    let addresses = pod.interfaces.iter().flat_map(|interface| &interface.addresses);
    let addresses: Vec<&str> = addresses.map(|address| address.address.as_str()).collect();
    println!("{}: attached, {}", flags.name, addresses.join(" "));
    Ok(())
}
