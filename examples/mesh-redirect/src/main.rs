//! mesh-redirect: a small service mesh's part of every attach, as an extension of Knit.
//!
//! It listens on a socket of its own, registers with the node's agent, and from then on the TCP of every pod is redirected
//! to a proxy's port inside the pod. A pod whose redirect cannot be set up does not start. When it is started again it
//! registers again; while it is away no pod can be attached, and running pods keep their redirect.

mod redirect;
mod service;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::{fs, io};

use anyhow::{Context, Result};
use clap::Parser;
use knit_kni::v1::extension_server::ExtensionServer;
use knit_kni::{Client, DEFAULT_SOCKET, v1};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use service::Mesh;

/// Redirect the TCP of every pod of this node to a proxy inside the pod
#[derive(Debug, Parser)]
#[command(name = "mesh-redirect")]
struct Flags {
    /// The agent's socket
    #[arg(long, env = "KNIT_KNI_SOCKET", default_value = DEFAULT_SOCKET)]
    kni_socket: PathBuf,
    /// The socket that the agent calls
    #[arg(long, default_value = "/run/mesh-redirect.sock")]
    socket: PathBuf,
    /// Where the registration's token is kept, for changes and for --remove
    #[arg(long, default_value = "/run/mesh-redirect.token")]
    token_file: PathBuf,
    /// The name to register under
    #[arg(long, default_value = "mesh-redirect")]
    name: String,
    /// Extensions with a smaller number are called before it
    #[arg(long, default_value_t = 100)]
    order: i32,
    /// The proxy's port inside the pods
    #[arg(long, default_value_t = 15001)]
    proxy_port: u16,
    /// Only pods with this label; may be given many times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// How long one call may take, in milliseconds
    #[arg(long, default_value_t = 5_000)]
    deadline: u32,
    /// Remove the registration and end
    #[arg(long)]
    remove: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { if flags.remove { remove(flags).await } else { serve(flags).await } })
}

/// Listens first and registers then: from the moment it is registered, attaches depend on it.
async fn serve(flags: Flags) -> Result<()> {
    redirect::check().context("the nft program is needed")?;
    let listener = listen(&flags).with_context(|| flags.socket.display().to_string())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let server = Server::builder()
        .add_service(ExtensionServer::new(Mesh::new(flags.proxy_port)))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
            terminate.recv().await;
        });
    let server = tokio::spawn(server);
    register(&flags).await?;
    server.await??;
    // The registration stays: pods that come while this program is away must not start without it.
    Ok(())
}

/// A new file each time: an older process keeps its own until it ends.
fn listen(flags: &Flags) -> io::Result<UnixListener> {
    let born = flags.socket.with_extension(format!("{}.new", std::process::id()));
    let listener = UnixListener::bind(&born)?;
    fs::set_permissions(&born, fs::Permissions::from_mode(0o600))?;
    fs::rename(&born, &flags.socket)?;
    Ok(listener)
}

async fn register(flags: &Flags) -> Result<()> {
    let phases =
        [v1::ExtensionPhase::BeforeAttach, v1::ExtensionPhase::AfterAttach, v1::ExtensionPhase::AfterDetach];
    let extension = v1::ExtensionSpec {
        name: flags.name.clone(),
        order: flags.order,
        socket: fs::canonicalize(&flags.socket)?.display().to_string(),
        phases: phases.map(Into::into).to_vec(),
        labels: flags.labels.iter().cloned().collect(),
        deadline_millis: flags.deadline,
        ..Default::default()
    };
    let token = fs::read_to_string(&flags.token_file).unwrap_or_default();
    let request = v1::RegisterRequest { extension: Some(extension), token, as_admin: false };
    let answer = Client::connect(&flags.kni_socket).await?.register_extension(request).await?;
    if !answer.token.is_empty() {
        write_token(flags, &answer.token).with_context(|| flags.token_file.display().to_string())?;
    }
    println!("{}: registered, generation {}", flags.name, answer.generation);
    Ok(())
}

fn write_token(flags: &Flags, token: &str) -> io::Result<()> {
    let draft = flags.token_file.with_extension("new");
    fs::write(&draft, token)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
    fs::rename(&draft, &flags.token_file)
}

async fn remove(flags: Flags) -> Result<()> {
    let token = fs::read_to_string(&flags.token_file).context("no token: was it registered from here?")?;
    let request = v1::DeregisterRequest { name: flags.name.clone(), token, as_admin: false };
    let answer = Client::connect(&flags.kni_socket).await?.deregister_extension(request).await?;
    fs::remove_file(&flags.token_file)?;
    println!("{}: {}", flags.name, if answer.removed { "removed" } else { "was not registered" });
    Ok(())
}
