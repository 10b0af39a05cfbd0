//! The plugin as a process: environment, standard input, standard output and exit code.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

use knit_kni::{frame, v1};
use prost::Message;
use serde_json::{Value, json};

fn run(variables: &[(&str, &str)], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_knit-cni"));
    command.env_clear().envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The plugin may exit before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn version_prints_the_supported_versions() {
    let output = run(&[("CNI_COMMAND", "VERSION")], br#"{"cniVersion":"0.4.0"}"#);
    assert!(output.status.success());
    let result = json_of(&output);
    assert_eq!(result["cniVersion"], "0.4.0");
    assert_eq!(result["supportedVersions"], json!(["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
}

#[test]
fn errors_are_json_on_standard_output_with_an_exit_code() {
    let output = run(&[], b"");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json_of(&output)["code"], 4);
    assert!(json_of(&output)["msg"].as_str().unwrap().contains("CNI_COMMAND"));
    let output = run(&[("CNI_COMMAND", "STATUS")], &vec![b' '; (4 << 20) + 2]);
    assert_eq!(json_of(&output)["code"], 5, "input is too large");
}

#[test]
fn add_calls_the_agent_over_its_socket() {
    let folder = std::env::temp_dir().join(format!("knit-cni-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("cni.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let agent = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut header = [0; frame::HEADER_LEN];
        stream.read_exact(&mut header).unwrap();
        let mut bytes = vec![0; frame::payload_len(header, 1 << 20).unwrap()];
        stream.read_exact(&mut bytes).unwrap();
        let reply = v1::FramedReply {
            code: 6,
            message: "interface eth0 is attached already".to_owned(),
            error: Some(v1::ErrorDetail { reason: "AlreadyPresent".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        stream.write_all(&frame::encode(&reply)).unwrap();
        v1::FramedCall::decode(bytes.as_slice()).unwrap()
    });
    let config = json!({ "cniVersion": "1.0.0", "name": "n", "type": "knit-cni", "socket": socket });
    let variables = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/run/netns/a"),
        ("CNI_ARGS", "IgnoreUnknown=1;NEW=1"),
    ];
    let output = run(&variables, config.to_string().as_bytes());
    std::fs::remove_dir_all(&folder).unwrap();
    let call = agent.join().unwrap();
    assert_eq!((call.method.as_str(), call.deadline_ms), ("Attach", 30_000));
    let request = v1::AttachRequest::decode(call.request.as_slice()).unwrap();
    assert!(request.fail_if_present && request.began > 0);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((&json_of(&output)["code"], &json_of(&output)["cniVersion"]), (&json!(100), &json!("1.0.0")));
    assert!(String::from_utf8_lossy(&output.stderr).contains("NEW"), "ignored arguments are logged");
}
