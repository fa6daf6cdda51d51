"""The first wrong event of each mutant of a serving stack, by case.

Each location was checked against the mutant's `fault`; comments say how the case shows it.
"""

from __future__ import annotations

EventLocation = tuple[str, int | None, int | None]
"""Request, slot and step; no step for an event outside any scheduler."""

EVENT_LOCATIONS: dict[str, dict[str, EventLocation]] = {
    "p0/aborts_leak_no_slot[cpu-slots1-seed1]": {
        "releases_only_this_steps_rows": ("request 2", None, 2)},
    "p0/cancel_ends_at_every_stage[cpu-prefilling-cancel]": {
        "cancels_only_who_decodes": ("request 2", None, 2)},
    "p0/slots_are_conserved_and_never_shared[cpu-slots2-seed1]": {
        "slot_by_number": ("request 1", 0, 5),
        "zips_answers_with_rows": ("request 1", 0, 3)},
    "p0/every_ending_releases_once[cpu-eos-first]": {
        "frees_a_stopped_row_twice": ("request 3", 0, 6),
        "releases_before_reading": ("request 1", None, 0),
        "disconnect_frees_twice": ("request 3", 0, 6)},
    "p0/decode_never_waits_for_prefill[cpu-chunks64]": {
        "prefill_first": ("request 1", 1, 3)},
    "p0/prefill_never_waits_for_others[cpu-join1]": {
        "prefills_before_admitting": ("request 3", 0, 2)},
    "p0/token_budgets_are_exact[cpu-join0]": {
        "deadline_by_batch_step": ("request 2", 0, 3),
        "one_forward_too_many": ("request 2", 0, 1)},
    # the stop id is the first token; requests 1 and 3 stop there, 2 and 4 ignore it
    "p0/stops_are_each_requests_own[cpu-eos-at0]": {
        "appends_until_the_last_ends": ("request 1", 3, 1),
        "first_stop_id_only": ("request 1", 3, 1),
        "no_stop_on_the_prefill_token": ("request 1", 3, 1),
        "stops_for_all": ("request 2", 1, 1),
        "swallows_the_stop_token": ("request 1", 3, 1),
        "eos_is_always_a_stop": ("request 2", 1, 1),
        "length_beats_stop": ("request 3", 0, 1)},
    "p0/batch_forms_at_every_width[cpu-c4-equal]": {
        "no_parallel_for_this_model": ("request 2", 1, 1),
        "padding_takes_a_slot": ("request 4", 2, 1),
        "steps_row_by_row": ("request 2", 1, 1),
        "one_seat_a_step": ("request 2", 1, 1)},
    "p0/cancel_ends_at_every_stage[cpu-submitted-cancel]": {
        "cancels_only_who_is_seated": ("request 2", None, 0),
        "cancel_tells_nobody": ("request 2", None, 1),
        "cancel_is_taken_twice": ("request 2", None, 0)},
    "p0/slots_are_conserved_and_never_shared[cpu-slots1-seed1]": {
        "stop_keeps_its_slot": ("request 1", 0, 8)},
    "p0/admission_is_first_come_first_served[cpu-slots1-seed1]": {
        "newest_first": ("request 2", 0, 1),
        "shortest_first": ("request 4", 0, 6)},
    "p0/admission_is_first_come_first_served[cpu-slots2-seed1]": {
        "waits_for_the_batch_to_end": ("request 3", 0, 2)},
    "p0/reuse_waits_for_the_step_to_be_read[cpu-add_slot-1-cancels-d]": {
        "seats_who_was_cancelled": ("request 4", 2, 2)},
    "p0/a_full_queue_refuses_and_keeps_others[cpu-slots1-queue0]": {
        "queue_without_bound": ("request 2", None, 0),
        "bound_forgets_free_slots": ("request 1", None, 0),
        "refused_request_stays": ("request 3", None, 1)},
    # request 1 fills the context exactly; 3 needs one token more; 5 has the id of a running one
    "p0/bad_requests_change_nothing[cpu-join0]": {
        "context_is_not_checked": ("request 3", None, 0),
        "last_token_needs_room": ("request 1", None, 0),
        "same_id_replaces": ("request 5", None, 0)},
    # request 1 has one token, so 2 is the first that reuses one; it ends with its third token
    "p0/reused_tokens_are_skipped[cpu-reused1]": {
        "computes_reused_tokens_again": ("request 2", 0, 1),
        "tells_no_reuse": ("request 2", 0, 3)},
    "p0/prefill_never_waits_for_others[cpu-join0]": {
        "one_prompt_at_a_time": ("request 2", 1, 1)},
    "p0/finish_times_equal_solo[cpu-slots3-chunk8-seed1]": {
        "chunk_is_halved": ("request 1", 1, 1)},
    "p0/reuse_waits_for_the_step_to_be_read[cpu-decode_step-2-cancels-a]": {
        "token_after_cancel": ("request 1", 3, 2)},
    "p0/batch_forms_at_every_width[cpu-c1-equal]": {
        "logs_only_above_one": ("", None, 1),
        "says_a_width_once": ("", None, 7),
        "logs_every_step": ("", None, 2)},
    "p0/batch_forms_at_every_width[cpu-c4-ragged]": {
        "logs_requests_not_rows": ("", None, 6)},
    # the engine names the row of request 1 as the failed one, next to request 2
    "p0/errors_stay_with_their_request[cpu-named-beyond0-0]": {
        "error_ends_the_whole_step": ("request 2", 1, 1),
        "named_row_is_ignored": ("", None, 1),
        "no_reset": ("", None, 1),
        "goes_on_after_the_error": ("request 1", 3, 1),
        "replay_is_forgotten": ("request 2", 1, 1)},
    "p0/errors_stay_with_their_request[cpu-named-beyond0-3]": {
        "error_ends_the_oldest": ("request 1", 3, 2)},
    "p0/errors_stay_with_their_request[cpu-named-beyond6-0]": {
        "replay_is_handed_out": ("request 2", 2, 7)},
    "p0/errors_stay_with_their_request[cpu-seat-0]": {
        "failed_start_ends_all": ("request 1", None, 1),
        "failed_join_resets": ("", None, 1)},
    "p0/accidents_cost_nobody_a_token[cpu-recycle_slot]": {
        "failed_release_is_ignored": ("", None, 6)},
    "p0/a_dead_engine_ends_everyone_clearly[cpu-step0]": {
        "reset_error_escapes": ("", None, 1),
        "reset_error_is_ignored": ("request 1", 1, 1)},
    "p0/drain_serves_what_was_accepted[cpu-accepted1-steps0-abort-False]": {
        "drain_drops_the_queue": ("request 1", None, 1)},
    "p0/drain_serves_what_was_accepted[cpu-accepted0-steps0-abort-False]": {
        "drain_takes_more": ("request 1", None, 0),
        "cleans_up_twice": ("", None, 0)},
    "p0/drain_serves_what_was_accepted[cpu-accepted1-steps0-abort-True]": {
        "abort_spares_the_queue": ("request 1", 1, 1)},
    "p2/replies_end_for_their_own_reason[cpu-completions-stream-False]": {
        "pending_is_popped_for_all": ("request 1", 0, 3),
        "eos_is_length": ("request 4", 3, 4),
        "end_token_is_not_counted": ("request 4", 3, 4),
        "longest_prompt_counts": ("request 2", 1, 2),
        "end_tokens_are_ignored": ("request 1", None, 0),
        "end_tokens_always_end": ("request 3", None, 0)},
    # each of the six runs by itself first; then all together, the first greedy, the second not
    "p2/rows_are_drawn_alone[cpu-late0]": {
        "answers_the_neighbour": ("request 1", 0, 1),
        "logits_of_one_row": ("request 2", 1, 2),
        "greedy_for_everyone": ("request 'r1' alone", 0, 1),
        "first_rows_options": ("request 2", 1, 1),
        "plain_rows_take_no_place": ("request 1", 0, 1),
        "top_k_is_dropped": ("request 'r3' alone", 0, 1),
        "seed_of_the_row": ("request 'r1' alone", 0, 1),
        "number_of_the_batch": ("request 5", 4, 3),
        "one_generator_for_all": ("request 'r1' alone", 0, 1)},
    "p2/rows_are_drawn_alone[cpu-late1]": {
        "counts_fall_short_of_rows": ("request 3", 2, 2)},
    # requests 1 and 2 are completions, 3 and 4 chats; each stops with its sixth step
    "p2/stop_strings_cut_whole_texts[cpu-inside-a-token]": {
        "chat_ignores_stops": ("request 3", 2, 6),
        "stop_is_shown": ("request 1", 0, 6),
        "goes_on_behind_a_stop": ("request 5", None, 12),
        "length_beats_stop": ("request 1", 0, 6)},
    "p2/stop_strings_cut_whole_texts[cpu-across-tokens]": {
        "matches_each_token_alone": ("request 1", 0, 4),
        "shows_before_deciding": ("request 1", 0, 4)},
    "p2/batches_form_over_http[cpu-c4]": {
        "returns_early_for_one": ("request 2", 1, 1),
        "one_request_at_a_time": ("request 2", None, 0),
        "loops_over_rows": ("request 1", 0, 1)},
    "p2/handlers_never_wait_for_a_step[cpu-toy]": {
        "locks_the_step": ("request 5", None, 0)},
    "p2/draws_follow_their_options[cpu-vocab17-seed1]": {
        "top_p_is_dropped": ("row 19", None, None),
        "neighbours_logprobs": ("row 0", None, None),
        "logprobs_after_temperature": ("row 6", None, None),
        "drops_the_odd_tie": ("row 0", None, None)},
    "p2/one_live_request_keeps_its_turn[cpu-shorter]": {
        "slot_is_not_cleared": ("request 2", 0, 5)},
    # the second request begins as the first one's turn ended, with its fifth step
    "p2/one_live_request_keeps_its_turn[cpu-goes-on]": {
        "never_goes_on": ("request 2", 0, 5),
        "cached_is_not_told": ("request 2", 0, 8)},
    "p2/one_live_request_keeps_its_turn[cpu-diverges-at-the-end]": {
        "goes_on_by_length": ("request 2", 0, 5)},
    "p2/one_live_request_keeps_its_turn[cpu-beside-another]": {
        "goes_on_in_company": ("request 2", 0, 5)},
    "p2/one_live_request_keeps_its_turn[cpu-after-an-error]": {
        "turn_survives_errors": ("request 3", 0, 6)},
    "p2/memory_has_a_budget[cpu-slots1-context16]": {
        "budget_forgets_keys": ("an engine", None, None),
        "tokens_are_not_checked": ("the case", 0, None),
        "checks_while_seating": ("the case", None, None)},
    # five requests one by one, then together; the third of the latter, 8, has the bad row
    "p2/engine_errors_reach_every_client[cpu-row]": {
        "reset_keeps_slots": ("", None, 26),
        "errors_are_silent": ("request 8", 2, 29),
        "errors_look_finished": ("request 8", 2, 29),
        "streams_hide_errors": ("request 8", 2, 29)},
    "p2/shutdown_drains[cpu-toy]": {
        "memory_is_kept": ("", None, 29),
        "shutdown_cancels": ("request 5", None, 20)},
    "p2/stop_strings_cut_whole_texts[cpu-never]": {
        "loses_held_text": ("request 1", 0, 7)},
    "p2/stop_strings_cut_whole_texts[cpu-of-two-the-earlier]": {
        "first_listed_stop_cuts": ("request 1", 0, 6)},
    "p2/stop_strings_cut_whole_texts[cpu-begins-and-fails]": {
        "restarts_after_a_miss": ("request 1", 0, 4)},
    "p2/streams_show_whole_characters[cpu-whole]": {
        "decodes_token_by_token": ("request 2", 0, 7),
        "end_is_lost": ("request 2", 0, 7)},
    "p2/replies_end_for_their_own_reason[cpu-completions-stream-True]": {
        "usage_of_a_stream_misses_the_last": ("request 2", 1, 2)},
    "p2/replies_equal_serial[cpu-toy-completions-whole]": {
        "seed_of_the_first": ("request 2", None, 0),
        "seed_is_ignored": ("request 2", None, 0)},
    "p2/batches_form_over_http[cpu-c1]": {
        "metrics_count_requests": ("HTTP request 2", None, None)},
    "p2/bad_requests_are_refused_by_field[cpu-completions]": {
        "unknown_fields_are_dropped": ("request 2", None, 0),
        "numbers_may_be_text": ("request 2", None, 0),
        "only_announced_sizes_count": ("HTTP request 53", None, None),
        "limit_is_not_checked": ("request 2", None, 0),
        "long_texts_are_encoded": ("HTTP request 58", None, None)},
    # HTTP request 1 has no key and asks for a completion, 2 for a chat
    "p2/strangers_stay_outside[cpu-key]": {
        "key_by_its_beginning": ("request 1", None, 0),
        "chat_has_no_door": ("HTTP request 2", None, None)},
    "p2/a_full_queue_answers_429[cpu-slots1-queue0]": {
        "full_queue_is_a_fault": ("request 2", None, 0),
        "no_word_of_later": ("request 2", None, 0),
        "queue_takes_one_more": ("request 2", None, 0)},
    # the first of a wave always leaves, the second asks for a whole reply
    "p2/disconnects_free_their_slots[cpu-3-waves-of-12-seed1]": {
        "disconnect_is_forgotten": ("request 1", None, 0),
        "disconnect_ends_the_newest": ("request 1", None, 0),
        "whole_replies_are_not_watched": ("request 2", None, 0),
        "leaves_slots_of_the_gone": ("request 26", 2, 31)},
    "p2/hostile_templates_are_refused[cpu-reaches-classes]": {
        "template_without_a_sandbox": ("a chat", None, None)},
    "p2/hostile_templates_are_refused[cpu-one-chat]": {
        "one_chat_refuses_all": ("a chat", None, None)},
    "p2/chats_follow_the_template[cpu-turns]": {
        "template_is_cached_by_length": ("HTTP request 2", None, None),
        "last_message_only": ("HTTP request 3", None, None)},
    # the stride is 8; request 1 has 20 tokens, and request 2 ends first, with 9
    "p7/checkpoints_are_exact[cpu-chunk64]": {
        "floors_the_key": ("request 2", 1, 7),
        "files_chunks_under_the_stride": ("request 1", 0, 1),
        "files_a_token_short": ("request 2", 1, 7),
        "files_the_token_to_come": ("request 2", 1, 7),
        "runs_past_the_stride": ("request 1", 0, 1)},
    "p7/kv_without_state_is_not_reused[cpu-parting-at-14]": {
        "reuses_kv_alone": ("request 2", 0, 4),
        "trims_the_recurrent_state": ("request 1", 0, 1)},
    # request 10 shares the first 8 tokens, after which the first state is stored
    "p7/warm_equals_cold_at_every_length[cpu-block4-stride8-18-tokens]": {
        "keeps_no_recurrent_state": ("request 10", 0, 20),
        "queues_the_copy": ("request 10", 0, 20),
        "begins_at_position_zero": ("request 10", 0, 20),
        "rounds_the_recurrent_state": ("request 10", 0, 20),
        "forgets_the_window": ("request 10", 0, 20),
        "forgets_the_recurrent_state": ("request 10", 0, 20)},
    "p7/children_do_not_meet[cpu-at8-tail1]": {
        "writes_short_chunks_back": ("request 4", 0, 6),
        "restores_into_the_neighbour": ("request 1", 1, 1)},
    "p7/reuse_told_is_reuse_measured[cpu-seed1]": {
        "refuses_short_prefixes": ("request 5", 1, 9),
        "finds_nothing": ("request 5", 1, 9),
        "computes_what_it_reuses": ("request 5", 1, 9),
        "tells_no_reuse": ("request 5", 1, 9),
        "counts_prompts": ("request 5", 1, 9)},
    "p7/match_is_made_at_admission[cpu-newest]": {
        "matches_at_enqueue": ("request 3", 0, 3)},
    "p7/failures_cost_time_alone[cpu-step]": {
        "keeps_failed_states": ("request 2", 0, 7)},
    "p7/cancels_keep_only_what_was_computed[cpu-step2]": {
        "files_the_whole_prompt": ("request 2", 0, 7)},
    "p7/turns_of_chats_are_reused[cpu-chunk64-turns3]": {
        "never_keeps_turns": ("request 1", 0, 3),
        "counts_draws_from_reuse": ("request 4", 1, 4),
        "loses_the_tail": ("request 3", 0, 4)},
    # the first request of another model finds the prefix of the first one's
    "p7/models_never_share[cpu-model]": {
        "shares_among_models": ("request 1", 0, 1)},
    # and of another path
    "p7/models_never_share[cpu-path]": {
        "shares_among_paths": ("request 1", 0, 1)},
    "p7/nothing_kept_is_shared_with_a_slot[cpu-newest]": {
        "keeps_views": ("the store", None, None),
        "keeps_blocks_as_views": ("the store", None, None),
        "gives_itself_away": ("the store", None, None)},
    "p7/kv_without_state_is_not_reused[cpu-parting-at-16]": {
        "frees_shared_blocks": ("request 2", 0, 4)},
    "p7/budget_is_kept[cpu-fit2]": {
        "leaks_users": ("request 1", 0, 3),
        "counts_one_user": ("request 1", 0, 3),
        "ignores_the_budget": ("request 1", 0, 3)},
    "p7/full_hit_computes_one_token[cpu-8-tokens]": {
        "hits_the_whole_prompt": ("request 3", 0, 3),
        "hides_behind_the_whole_prompt": ("request 3", 0, 3)},
    "p7/store_equals_dull_store[cpu-fit3-block3-30]": {
        "shares_the_block_that_parts": ("the store", None, None),
        "evicts_the_newest": ("the store", None, None),
        "evicts_the_oldest": ("the store", None, None),
        "loses_a_child": ("the store", None, None)},
    "p7/failures_cost_time_alone[cpu-restore_half_way]": {
        "leaves_half_a_copy": ("request 2", 0, 5),
        "lets_copies_fail": ("request 2", 0, 5)},
    "p7/tokens_are_the_key[cpu-2-pairs]": {
        "keyed_by_text": ("request 3", 0, 3)},
    "p7/replies_tell_cached_tokens[cpu-3-turns]": {
        "serves_without_a_store": ("HTTP request 10", None, None),
        "shows_another_meter": ("HTTP request 10", None, None)}}
LOCATION_BY_MUTANT = {f"{case[:2]}/{name}": (case, place)
                      for case, places in EVENT_LOCATIONS.items()
                      for name, place in places.items()}
