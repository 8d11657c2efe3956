"""Names of the results of fused kernels."""

# A rematerialization policy that saves them does not repeat its forward pass.
FUSED_OUTPUT, FUSED_LOG_SUM_EXP = "fused_attention_output", "fused_attention_log_sum_exp"
