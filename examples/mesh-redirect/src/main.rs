//! mesh-redirect: an extension of Knit that redirects the TCP connections of every pod to a proxy in the pod, like a
//! service mesh.
//!
//! It listens on a socket and registers with the node agent. A pod without its redirect does not start. After a restart
//! the extension registers again; while it is down no pod can be attached, and running pods keep their redirect.

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

/// Redirect the TCP connections of every pod on this node to a proxy in the pod
#[derive(Debug, Parser)]
#[command(name = "mesh-redirect")]
struct Flags {
    /// Socket of the agent
    #[arg(long, env = "KNIT_KNI_SOCKET", default_value = DEFAULT_SOCKET)]
    kni_socket: PathBuf,
    /// Socket that the agent calls
    #[arg(long, default_value = "/run/mesh-redirect.sock")]
    socket: PathBuf,
    /// File for the token of the registration
    #[arg(long, default_value = "/run/mesh-redirect.token")]
    token_file: PathBuf,
    /// Name of the extension
    #[arg(long, default_value = "mesh-redirect")]
    name: String,
    /// Call order: extensions with smaller numbers are called first
    #[arg(long, default_value_t = 100)]
    order: i32,
    /// Port of the proxy in the pods
    #[arg(long, default_value_t = 15001)]
    proxy_port: u16,
    /// Only pods with this label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Timeout of a call, in milliseconds
    #[arg(long, default_value_t = 5_000)]
    deadline: u32,
    /// Remove the registration and exit
    #[arg(long)]
    remove: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { if flags.remove { remove(flags).await } else { serve(flags).await } })
}

/// Listens before it registers: once it is registered, attaches depend on it.
async fn serve(flags: Flags) -> Result<()> {
    redirect::check().context("the nft program is required")?;
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
    // The registration is kept: pods must not start without the extension while it is down.
    Ok(())
}

/// Replaces the socket file, so that an older process keeps its socket until it exits.
fn listen(flags: &Flags) -> io::Result<UnixListener> {
    let draft = flags.socket.with_extension(format!("{}.new", std::process::id()));
    let listener = UnixListener::bind(&draft)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
    fs::rename(&draft, &flags.socket)?;
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
    let response = Client::connect(&flags.kni_socket).await?.register_extension(request).await?;
    if !response.token.is_empty() {
        write_token(flags, &response.token).with_context(|| flags.token_file.display().to_string())?;
    }
    println!("{}: registered, generation {}", flags.name, response.generation);
    Ok(())
}

fn write_token(flags: &Flags, token: &str) -> io::Result<()> {
    let draft = flags.token_file.with_extension("new");
    fs::write(&draft, token)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
    fs::rename(&draft, &flags.token_file)
}

async fn remove(flags: Flags) -> Result<()> {
    let token = fs::read_to_string(&flags.token_file)
        .context("no token: the extension was not registered with this token file")?;
    let request = v1::DeregisterRequest { name: flags.name.clone(), token, as_admin: false };
    let response = Client::connect(&flags.kni_socket).await?.deregister_extension(request).await?;
    fs::remove_file(&flags.token_file)?;
    println!("{}: {}", flags.name, if response.removed { "removed" } else { "was not registered" });
    Ok(())
}
