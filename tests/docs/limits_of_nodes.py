"""The limitations that the guides of nodes, their hosts and the registry state; a part of limits.py."""

from __future__ import annotations

OVER_NODES = "node_manager/test_across.py::test_what_slots_over_nodes_do_not_do_yet_is_refused_with_what_to_do"
_LANDLOCK = "node_manager/test_sandbox.py::test_landlock_keeps_a_process_from_tcp_and_from_signals_and_not_from_udp_nor_sockets_with_a_path"
CANARY_BY_HAND = "registry/test_canaries.py::test_a_canary_is_promoted_by_hand_before_its_time_is_over_once_all_nodes_have_begun"
_WRITES_TOO_LATE = "registry/test_two_processes.py::test_who_cannot_write_for_ten_seconds_answers_503_and_may_be_asked_again"
_WRITES = "node_manager/test_docker.py::test_files_are_written_to_tmp_and_shared_memory_only"
_OTHER_SLOTS = "node_manager/test_access.py::test_an_instance_reaches_no_other_slots_keys"
_STATELESS_STATE = (
    "node_manager/test_dead_letters.py::test_only_under_this_policy_a_stateless_instance_gets_on_the_state_server_and_only_to_its_letters"
)
_OTHER_HOST = "node_manager/test_tls_relay.py::test_another_host_opens_lanes_by_tls_and_may_do_nothing_else"
_STRANGER = "node_manager/test_moves_between_nodes.py::test_a_host_that_has_a_certificate_and_not_the_registrys_token_moves_nothing"
SANDBOXED = "attacks/test_attacks.py::test_a_sandboxed_process_gets_nowhere"
PRIVATE_SOCKETS = "node_manager/test_recovery.py::test_servers_listen_on_private_unix_sockets_only_and_know_the_slot_log"
_SIGNED_IN = "registry/test_console.py::test_what_nodes_know_is_for_who_is_signed_in_and_a_node_that_cannot_be_asked_is_named"
_NO_CERTIFICATE = (
    "node_manager/test_tls_relay.py::test_who_shows_no_certificate_of_the_authority_reaches_neither_node_manager_nor_queue_server"
)
_REGISTRY_BY_TLS = "registry/test_tls.py::test_over_https_the_registry_takes_pushes_updates_and_long_polls_of_those_who_show_a_certificate"
_REGISTRY_WITHOUT_TLS = "registry/test_tls.py::test_without_tls_the_registry_listens_on_no_address_that_other_hosts_reach"
_SECRETS = "registry/test_deployments.py::test_secrets_and_files_reach_nodes_but_no_read_and_no_log"
_PASSWORDS = "node_manager/test_access.py::test_passwords_are_in_nobody_elses_sight"

OF_NODES: dict[str, dict[str, list[str] | str]] = {
    "console.md": {
        "whatever it has counted so far (`udo update NAME --promote`)": [CANARY_BY_HAND],
        "the console shows what it has found so far": "what a running diff has found until then, not a limit",
        "cannot be framed, are not cached": [
            "registry/test_console.py::test_everybody_reads_what_the_api_shows_and_nobody_without_a_token_more",
        ],
        "which only the node manager's user can open": [
            PRIVATE_SOCKETS,
        ],
        "`SameSite=Strict`, for `/console` only": [
            "registry/test_console.py::test_who_signs_in_gets_a_cookie_without_the_token_that_scripts_and_other_sites_cannot_use",
        ],
        "only for who is signed in: nobody else makes": [
            _SIGNED_IN,
        ],
    },
    "deploying.md": {
        "have namespaces of their own only if the image": [
            "node_manager/test_sandbox.py::test_a_sandbox_that_does_not_start_is_not_used_and_the_reason_said",
        ],
    },
    "docker.md": {
        "memory that cannot be reclaimed": "of the kernel: which memory counts",
        "server gave HTTP response to HTTPS client": "of the Docker daemon",
        "a read-only root; `/udo/run`": [
            "node_manager/test_docker.py::test_an_instance_is_bounded_by_its_manifest_and_is_nobody_on_this_machine",
            _WRITES,
        ],
        "with access to its slot's keys only; on the state": [
            "attacks/test_attacks.py::test_a_container_gets_nowhere",
            _OTHER_SLOTS,
            _STATELESS_STATE,
        ],
        "can write files to `/tmp` and `/dev/shm` only": [
            _WRITES,
        ],
        "Read-only file system | write to": "what the system says",
    },
    "executors.md": {
        "its home has mode 700, so that other users cannot": [
            "node_manager/test_recovery.py::test_servers_listen_on_private_unix_sockets_only_and_know_the_slot_log",
        ],
        "a key that does not fit its certificate, change nothing": [
            "node_manager/test_tls_relay.py::test_certificates_that_cannot_be_used_are_told_and_the_former_ones_stay",
            "registry/test_tls.py::test_new_certificates_take_effect_with_the_next_connection",
        ],
        "also where it has none so far": [
            "node_manager/test_replicas_changed.py"
            "::test_without_replicas_key_groups_move_and_slots_come_and_go_and_with_replicas_again_all_of_that_survives",
        ],
        "cannot listen on ... without TLS": [
            "node_manager/test_tls_relay.py::test_listening_without_certificates_or_on_what_is_no_address_is_refused",
            "cli/test_certs.py::test_what_cannot_be_by_tls_is_said_before_anything_starts",
        ],
        "a task communicates only with the node it runs on": [
            "node_manager/test_registry.py::test_a_registry_that_is_away_stops_nothing_not_even_a_restart_of_the_node",
        ],
        "The driver needs the registry only": [
            "udo_interface/test_cluster.py::test_executors_of_a_cluster_find_the_node_manager_by_their_environment",
        ],
        "only a task that opens a lane needs it": [
            "node_manager/test_exactly_once.py"
            "::test_a_manager_killed_in_the_middle_of_an_update_leaves_the_old_version_answering_and_no_standby",
            "udo_interface/test_node_away.py::test_tasks_wait_for_a_node_manager_that_was_killed_and_comes_back",
        ],
        "**by TLS only, and both sides show a certificate**": [
            _NO_CERTIFICATE,
            "protocol/test_tls.py::test_a_server_of_another_authority_is_not_spoken_to",
            _REGISTRY_BY_TLS,
            _REGISTRY_WITHOUT_TLS,
        ],
        "A node needs `--listen` only if other hosts call": [
            "node_manager/test_across.py::test_a_keyed_query_counts_right_over_the_slots_of_all_nodes_whichever_node_its_tasks_ask",
            "registry/test_deployments.py::test_slots_over_nodes_are_spread_evenly_over_the_live_nodes_that_listen_and_stay_there",
            _SIGNED_IN,
        ],
        "A certificate only allows its holder to connect": [
            _OTHER_HOST,
            _REGISTRY_BY_TLS,
        ],
        "accepts only `OpenLane` and gRPC's health check": [
            _OTHER_HOST,
            _STRANGER,
        ],
        "complete only when all replicas hold it on disk": [
            "node_manager/test_replicas.py"
            "::test_an_end_waits_for_its_replica_until_the_registry_gives_it_up_which_never_happens_while_it_is_away",
        ],
    },
    "registry.md": {
        "A version cannot be deleted while a deployment runs it": [
            "registry/test_content.py::test_a_version_in_use_is_not_deleted_and_an_unused_one_takes_its_own_blobs_along",
            "registry/test_content.py::test_the_version_that_a_deployment_would_go_back_to_is_deleted_by_force_only",
        ],
        "its transaction is ended after 5 s. Who cannot": [
            "registry/test_two_processes.py::test_a_writer_that_stands_still_loses_its_turn_and_writes_nothing",
            _WRITES_TOO_LATE,
        ],
        "write within 10 s, or cannot reach the database": [_WRITES_TOO_LATE],
        "A proxy that cannot be used, or does not answer": [
            "registry/test_proxies.py::test_a_proxy_of_no_kind_that_is_known_is_refused_by_its_variable",
            "registry/test_proxies.py::test_a_proxy_that_does_not_answer_is_named_with_its_variable",
        ],
        "after a code change only the code layer is sent": [
            "cli/test_images.py::test_an_operator_stands_on_the_registrys_base_whose_layers_are_not_sent",
            "registry/test_distribution.py::test_a_layer_that_one_operator_has_is_not_sent_again_for_another",
        ],
        "only runs on nodes that provide this Python": [
            "node_manager/test_images.py::test_another_python_or_platform_is_refused_before_anything_is_fetched",
            "node_manager/test_daemon.py::test_an_operator_for_another_python_is_refused_by_name",
        ],
        "and only with `--force` while a rollback": [
            "registry/test_content.py::test_the_version_that_a_deployment_would_go_back_to_is_deleted_by_force_only",
        ],
        "which in mode auto are only what the nodes began": [
            "node_manager/test_modes.py::test_a_number_that_was_decided_stays_over_restarts_until_another_one_is_asked_for",
        ],
        "Only the registry's user can read the files": [
            "registry/test_deployments.py::test_only_the_owner_may_read_what_the_registry_keeps",
        ],
        "Of the API's answers only those": [
            _SECRETS,
            "registry/test_content.py::test_without_a_token_only_what_is_described_as_open_can_be_read",
        ],
        "keep the file, which only its owner can read": [
            "registry/test_backup.py::test_each_backup_made_during_pushes_and_updates_is_one_moment_of_the_registry",
        ],
        "`udo app show` has figures at that process only": [
            "registry/test_two_processes.py"
            "::test_one_process_decides_about_applications_and_the_other_goes_on_with_its_journal_when_it_dies",
        ],
        "but only the names of secrets and files": [
            _SECRETS,
        ],
        "the registry listens only with `--tls FOLDER`": [
            _REGISTRY_WITHOUT_TLS,
        ],
        "Nodes check only": [
            "node_manager/test_images.py::test_a_blob_with_another_digest_is_refused_and_nothing_is_kept",
        ],
    },
    "sandbox.md": {
        "From Linux 6.7 on it cannot use": [_LANDLOCK],
        "from 6.12 on it cannot signal other processes": [_LANDLOCK],
        "cannot be resolved, the connection is reset": [
            "node_manager/test_network.py::test_a_service_that_is_down_or_has_no_address_resets_the_connection_and_the_log_says_why",
        ],
        "Keyed state that an operator has corrupted cannot be repaired": [
            "node_manager/test_broken_keys.py::test_a_manager_that_starts_on_broken_keys_serves_all_the_same",
        ],
        "read-only. It may write to `/tmp` and `/dev/shm`": [
            SANDBOXED,
        ],
        "Run only operators that you trust": [
            "attacks/test_attacks.py::test_a_process_without_a_sandbox_is_as_open_as_its_driver_says",
        ],
        "only signals, memory and `os._exit` end the process": [
            "node_manager/test_surroundings.py::test_whatever_user_code_raises_is_one_events_failure",
            "cli/test_init_and_test.py::test_an_operator_that_exits_is_told_with_its_status",
        ],
        "It only forwards bytes, so the operator verifies TLS": "how it is done, not a limit",
        "they can only allow all of the network or none": [
            "node_manager/test_network.py::test_a_driver_that_opens_no_single_endpoint_says_so",
        ],
        "Allow only what you would let the operator's author": "advice",
        "readable by its user only": [
            _PASSWORDS,
        ],
        "each named, `owner` read-only; on the state server only": [
            _OTHER_SLOTS,
            "node_manager/test_access.py::test_an_instance_cannot_make_itself_the_owner_nor_change_the_route",
            "node_manager/test_access.py::test_users_come_and_go_with_their_instances",
            _STATELESS_STATE,
        ],
        "reach the queue server only where the node has `--listen`": [
            PRIVATE_SOCKETS,
            _NO_CERTIFICATE,
        ],
        "only other node managers of the same registry and the": [
            _OTHER_HOST,
            _STRANGER,
        ],
        "the node manager keeps only a hash": [
            _PASSWORDS,
        ],
    },
}
